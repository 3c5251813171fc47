//! The primitives of our binary formats: little-endian numbers, varints and length-prefixed bytes. A reader never
//! panics: invalid input is `Malformed`.

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed {0}")]
pub struct Malformed(pub &'static str);

pub fn put_varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Encodes `None` as 0 and `Some(n)` as n + 1. For the largest number, n + 1 needs one bit more than a `u64`.
pub fn put_option(out: &mut Vec<u8>, n: Option<u64>) {
    match n.map_or(Some(0), |n| n.checked_add(1)) {
        Some(n) => put_varint(out, n),
        None => out.extend_from_slice(&PAST_MAX),
    }
}

/// 2^64 as a varint.
const PAST_MAX: [u8; 10] = [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 2];

pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub fn take(&mut self, n: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self.rest.split_at_checked(n).ok_or(Malformed("length"))?;
        self.rest = rest;
        Ok(head)
    }

    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.take(1)?[0])
    }

    pub fn varint(&mut self) -> Result<u64, Malformed> {
        let mut n = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            n |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                // Only one bit of the tenth byte is significant.
                return if shift < 63 || byte < 2 { Ok(n) } else { Err(Malformed("varint")) };
            }
        }
        Err(Malformed("varint"))
    }

    pub fn u32(&mut self) -> Result<u32, Malformed> {
        u32::try_from(self.varint()?).map_err(|_| Malformed("number"))
    }

    pub fn option(&mut self) -> Result<Option<u64>, Malformed> {
        if let Some(rest) = self.rest.strip_prefix(&PAST_MAX) {
            self.rest = rest;
            return Ok(Some(u64::MAX));
        }
        Ok(self.varint()?.checked_sub(1))
    }

    pub fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let n = usize::try_from(self.varint()?).map_err(|_| Malformed("length"))?;
        self.take(n)
    }

    pub fn text(&mut self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Malformed("text"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(number: u64, option: Option<u64>, bytes: &[u8]) {
        let mut out = Vec::new();
        put_varint(&mut out, number);
        put_option(&mut out, option);
        put_bytes(&mut out, bytes);
        let mut r = Reader::new(&out);
        assert_eq!((r.varint(), r.option(), r.bytes()), (Ok(number), Ok(option), Ok(bytes)));
        assert!(r.is_empty() && r.rest().is_empty());
        // Reading must fail if the last byte is missing.
        let mut r = Reader::new(&out[..out.len() - 1]);
        assert!(r.varint().is_err() || r.option().is_err() || r.bytes().is_err());
    }

    #[test]
    fn every_number_comes_back_the_largest_too() {
        for n in [0, 1, 126, 127, 128, u64::from(u32::MAX), 1 << 63, u64::MAX - 1, u64::MAX] {
            check(n, Some(n), b"");
            check(n, None, b"x");
        }
    }

    #[test]
    fn numbers_that_do_not_fit_are_malformed() {
        let too_large = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2];
        let too_long = [0x80; 11];
        for bytes in [&too_large[..], &too_long, &PAST_MAX, &[0x80], &[]] {
            assert!(Reader::new(bytes).varint().is_err(), "{bytes:?}");
        }
        assert!(Reader::new(&[0xff, 0xff, 0xff, 0xff, 0x10]).u32().is_err());
        assert_eq!(Reader::new(&[0xff, 0xff, 0xff, 0xff, 0x0f]).u32(), Ok(u32::MAX));
        assert!(Reader::new(&[1, 0xff]).text().is_err());
    }

    proptest! {
        #[test]
        fn numbers_and_bytes_come_back(n in any::<u64>(), shift in 0u32..64, option: Option<u64>, bytes: Vec<u8>) {
            check(n >> shift, option.map(|n| n >> shift), &bytes);
        }
    }
}
