//! An incremental parser of the chunked transfer coding. Strict: lines end with CRLF, sizes are hexadecimal digits,
//! trailers have the form of headers.

use super::{Malformed, is_text, is_token};

#[derive(Clone, Copy, Debug, Default)]
pub struct Chunked {
    state: State,
    /// Bytes of padding, extensions and trailers, which are skipped.
    overhead: usize,
    trailers: usize,
}

pub enum Item<'a> {
    Data(&'a [u8]),
    End,
    /// More input is needed.
    More,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Size {
        digits: u8,
        size: u64,
    },
    /// Some servers pad sizes with spaces.
    SizeSpace {
        size: u64,
    },
    Extension {
        size: u64,
    },
    SizeLf {
        size: u64,
    },
    Data {
        left: u64,
    },
    DataCr,
    DataLf,
    TrailerStart,
    TrailerName,
    Trailer,
    TrailerLf,
    EndLf,
    End,
}

const OVERHEAD_BYTES_MAX: usize = 8 << 10;
const TRAILERS_MAX: usize = 64;

impl Default for State {
    fn default() -> State {
        State::Size { digits: 0, size: 0 }
    }
}

impl Chunked {
    /// Consumes bytes from the front of `bytes`.
    pub fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Item<'a>, Malformed> {
        loop {
            if let State::Data { left } = self.state
                && !bytes.is_empty()
            {
                return Ok(Item::Data(self.take_data(left, bytes)));
            }
            if matches!(self.state, State::End) {
                return Ok(Item::End);
            }
            let Some((byte, rest)) = bytes.split_first() else { return Ok(Item::More) };
            *bytes = rest;
            self.state = self.step(*byte)?;
        }
    }

    fn take_data<'a>(&mut self, left: u64, bytes: &mut &'a [u8]) -> &'a [u8] {
        let length = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let (data, rest) = bytes.split_at(length);
        *bytes = rest;
        self.state = match left - length as u64 {
            0 => State::DataCr,
            left => State::Data { left },
        };
        data
    }

    fn step(&mut self, byte: u8) -> Result<State, Malformed> {
        Ok(match (self.state, byte) {
            (State::Size { digits: 1.., size }, b'\r') => State::SizeLf { size },
            (State::Size { digits: 1.., size } | State::SizeSpace { size }, b';') => {
                State::Extension { size }
            }
            (State::Size { digits: 1.., size } | State::SizeSpace { size }, b' ' | b'\t') => {
                self.skip(State::SizeSpace { size })?
            }
            (State::Size { digits, size }, _) => add_digit(digits, size, byte)?,
            (State::Extension { size } | State::SizeSpace { size }, b'\r') => State::SizeLf { size },
            (State::Extension { .. }, byte) if is_text(byte) => self.skip(self.state)?,
            (State::Extension { .. }, _) => return Err(Malformed("a chunk extension is malformed")),
            (State::SizeLf { size: 0 }, b'\n') => State::TrailerStart,
            (State::SizeLf { size }, b'\n') => State::Data { left: size },
            (State::DataCr, b'\r') => State::DataLf,
            (State::DataLf, b'\n') => State::default(),
            (State::TrailerStart, b'\r') => State::EndLf,
            (State::TrailerStart, byte) if is_token(byte) => self.begin_trailer()?,
            (State::TrailerName, b':') => self.skip(State::Trailer)?,
            (State::TrailerName, byte) if is_token(byte) => self.skip(State::TrailerName)?,
            (State::Trailer, b'\r') => State::TrailerLf,
            (State::Trailer, byte) if is_text(byte) => self.skip(State::Trailer)?,
            (State::TrailerStart | State::TrailerName | State::Trailer, _) => {
                return Err(Malformed("a trailer is malformed"));
            }
            (State::TrailerLf, b'\n') => State::TrailerStart,
            (State::EndLf, b'\n') => State::End,
            _ => return Err(Malformed("a chunk does not end where its size says")),
        })
    }

    fn begin_trailer(&mut self) -> Result<State, Malformed> {
        self.trailers += 1;
        if self.trailers > TRAILERS_MAX {
            return Err(Malformed("too many trailers"));
        }
        self.skip(State::TrailerName)
    }

    /// Skips a byte and moves to the `next` state.
    fn skip(&mut self, next: State) -> Result<State, Malformed> {
        self.overhead += 1;
        if self.overhead > OVERHEAD_BYTES_MAX {
            return Err(Malformed("chunk extensions or trailers are too long"));
        }
        Ok(next)
    }
}

fn add_digit(digits: u8, size: u64, byte: u8) -> Result<State, Malformed> {
    let digit = char::from(byte).to_digit(16).ok_or(Malformed("a chunk size is not a hexadecimal number"))?;
    if digits == 15 {
        return Err(Malformed("a chunk size is too long"));
    }
    Ok(State::Size { digits: digits + 1, size: size << 4 | u64::from(digit) })
}
