//! Turns the bytes of a fuzzer into choices. When the bytes are used up, every choice is the first one.

pub struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    pub fn new(bytes: &'a [u8]) -> Input<'a> {
        Input { rest: bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub fn take(&mut self, n: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(n.min(self.rest.len()));
        self.rest = rest;
        taken
    }

    pub fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    pub fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    pub fn below(&mut self, n: usize) -> usize {
        let [low, high] = [self.byte(), self.byte()];
        usize::from(u16::from_le_bytes([low, high])) % n.max(1)
    }

    /// Any number, often one at a boundary.
    pub fn number(&mut self) -> u64 {
        match self.byte() {
            0 => 0,
            1 => u64::MAX,
            2 => u64::MAX - 1,
            3 => u64::from(u32::MAX),
            4 => 1 << 63,
            small @ 5..128 => u64::from(small),
            _ => {
                let mut bytes = [0; 8];
                let taken = self.take(8);
                bytes[..taken.len()].copy_from_slice(taken);
                u64::from_le_bytes(bytes)
            }
        }
    }

    pub fn bytes(&mut self) -> &'a [u8] {
        let length = usize::from(self.byte());
        self.take(length)
    }

    /// The valid UTF-8 prefix of the next bytes.
    pub fn text(&mut self) -> &'a str {
        let bytes = self.bytes();
        match std::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
        }
    }
}
