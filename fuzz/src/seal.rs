//! A second implementation of the store's checksums, to create damage with valid checksums.

/// The checksum of a table block: its offset, then the block.
pub fn block(offset: u64, payload: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&offset.to_le_bytes());
    crc.update(payload);
    crc.finalize()
}

/// The checksum of a record or a frame header: its address, its length, then the bytes.
pub fn record(address: u64, body: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&address.to_le_bytes());
    crc.update(&(body.len() as u32).to_le_bytes());
    crc.update(body);
    crc.finalize()
}
