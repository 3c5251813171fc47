//! The store's checksums, written down a second time, so that damage can be planted under a right one.

/// Of a block of a table: its offset, then the block.
pub fn block(offset: u64, payload: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&offset.to_le_bytes());
    crc.update(payload);
    crc.finalize()
}

/// Of a record or a frame header: its address, its length, then the bytes.
pub fn record(address: u64, body: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&address.to_le_bytes());
    crc.update(&(body.len() as u32).to_le_bytes());
    crc.update(body);
    crc.finalize()
}
