//! Checks whether every common parser can read a JSON text, even inside one of our responses.
//!
//! Valid JSON may be nested without limit, and may contain numbers outside the range of a double (1e999) or half a
//! surrogate pair (`"\ud800"`). Parsers reject such a text together with everything around it, so one event could
//! make a whole page unreadable.

/// Common parsers fail at depth 128. The difference is for the response around the data.
const DEPTH_MAX: usize = 100;
/// A shorter number without an exponent is in the range of a double.
const DIGITS_MAX: usize = 300;

/// Checks in one pass and builds nothing, because every event that is sent as JSON goes through it.
pub(crate) fn is_readable(bytes: &[u8]) -> bool {
    let mut scanner = Scanner { rest: bytes };
    std::str::from_utf8(bytes).is_ok() && scanner.value(0).is_some() && scanner.token().is_none()
}

/// Reads values and discards them. `None` means that the text is not readable.
struct Scanner<'a> {
    rest: &'a [u8],
}

impl Scanner<'_> {
    fn value(&mut self, depth: usize) -> Option<()> {
        self.peek()?;
        let from = self.rest;
        match self.take()? {
            b'{' if depth < DEPTH_MAX => self.members(depth + 1),
            b'[' if depth < DEPTH_MAX => self.items(depth + 1),
            b'"' => self.string(),
            b't' => self.word(b"rue"),
            b'f' => self.word(b"alse"),
            b'n' => self.word(b"ull"),
            b'-' | b'0'..=b'9' => self.number(from),
            _ => None,
        }
    }

    fn items(&mut self, depth: usize) -> Option<()> {
        if self.peek()? == b']' {
            return self.token().map(drop);
        }
        loop {
            self.value(depth)?;
            match self.token()? {
                b',' => {}
                b']' => return Some(()),
                _ => return None,
            }
        }
    }

    fn members(&mut self, depth: usize) -> Option<()> {
        if self.peek()? == b'}' {
            return self.token().map(drop);
        }
        loop {
            self.expect(b'"')?;
            self.string()?;
            self.expect(b':')?;
            self.value(depth)?;
            match self.token()? {
                b',' => {}
                b'}' => return Some(()),
                _ => return None,
            }
        }
    }

    /// The rest of a string.
    fn string(&mut self) -> Option<()> {
        loop {
            self.skip_plain();
            match self.take()? {
                b'"' => return Some(()),
                b'\\' => self.escape()?,
                _ => return None,
            }
        }
    }

    /// Skips to the next quote, backslash or control character.
    fn skip_plain(&mut self) {
        while let Some((block, rest)) = self.rest.split_first_chunk() {
            let plain = plain_at_start(*block);
            if plain < block.len() {
                self.rest = &self.rest[plain..];
                return;
            }
            self.rest = rest;
        }
        let is_special = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..0x20);
        let plain = self.rest.iter().position(is_special).unwrap_or(self.rest.len());
        self.rest = &self.rest[plain..];
    }

    fn escape(&mut self) -> Option<()> {
        match self.take()? {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(()),
            b'u' => self.unicode(),
            _ => None,
        }
    }

    /// The first half of a surrogate pair must be followed by the second, and the second has no meaning alone.
    fn unicode(&mut self) -> Option<()> {
        match self.hex()? {
            0xd800..0xdc00 => {
                self.word(b"\\u")?;
                matches!(self.hex()?, 0xdc00..0xe000).then_some(())
            }
            0xdc00..0xe000 => None,
            _ => Some(()),
        }
    }

    fn hex(&mut self) -> Option<u32> {
        let digit = |code: u32, byte: &u8| Some(code << 4 | char::from(*byte).to_digit(16)?);
        let (digits, rest) = self.rest.split_first_chunk::<4>()?;
        self.rest = rest;
        digits.iter().try_fold(0, digit)
    }

    /// The rest of the number with which `from` begins.
    fn number(&mut self, from: &[u8]) -> Option<()> {
        let first = match from.first()? {
            b'-' => self.take()?,
            digit => *digit,
        };
        match first {
            b'0' => {}
            b'1'..=b'9' => drop(self.digits()),
            _ => return None,
        }
        if self.take_if(|byte| byte == b'.') {
            self.digits()?;
        }
        let has_exponent = self.take_if(|byte| matches!(byte, b'e' | b'E'));
        if has_exponent {
            self.take_if(|byte| matches!(byte, b'+' | b'-'));
            self.digits()?;
        }
        let text = &from[..from.len() - self.rest.len()];
        (!has_exponent && text.len() < DIGITS_MAX || is_double(text)).then_some(())
    }

    /// At least one digit.
    fn digits(&mut self) -> Option<()> {
        let count = self.rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(self.rest.len());
        self.rest = &self.rest[count..];
        (count > 0).then_some(())
    }

    fn word(&mut self, word: &[u8]) -> Option<()> {
        self.rest = self.rest.strip_prefix(word)?;
        Some(())
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.token()? == byte).then_some(())
    }

    /// The next byte that is not white space.
    fn token(&mut self) -> Option<u8> {
        self.peek()?;
        self.take()
    }

    fn peek(&mut self) -> Option<u8> {
        while let [b' ' | b'\n' | b'\r' | b'\t', rest @ ..] = self.rest {
            self.rest = rest;
        }
        self.rest.first().copied()
    }

    fn take(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn take_if(&mut self, is: impl Fn(u8) -> bool) -> bool {
        match self.rest {
            [first, rest @ ..] if is(*first) => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }
}

/// The number of bytes before the first quote, backslash or control character. Compares all bytes at once.
fn plain_at_start(block: [u8; 8]) -> usize {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let block = u64::from_le_bytes(block);
    // The highest bit of a byte is 1 if the byte is below the limit. This is exact up to the first such byte.
    let below = |bytes: u64, limit: u64| bytes.wrapping_sub(EACH * limit) & !bytes;
    let is = |byte: u8| below(block ^ (EACH * u64::from(byte)), 1);
    let special = (below(block, 0x20) | is(b'"') | is(b'\\')) & (EACH << 7);
    special.trailing_zeros() as usize / 8
}

/// True if the number is in the range of a double.
fn is_double(text: &[u8]) -> bool {
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    number.is_some_and(f64::is_finite)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A general parser, which also limits depth, numbers and surrogates.
    fn is_parsed(bytes: &[u8]) -> bool {
        serde_json::from_slice::<serde_json::Value>(bytes).is_ok()
    }

    const PIECES: &str = "{|}|[|]|:|,| |\n|\r\t|\u{b}|\"|\\|\\n|\\/|\\x|\\u0041|\\ud83d|\\ude00|\\uD83D\\uDE00|\\u12|\
        plain text of some length|\"a\"|\"\"|é😀|\u{1f}|\u{7f}|true|false|null|nul|0|-|12|.|.5|e|E+3|e999|-0.25e-7|\
        1e308|0e999";

    fn pieces() -> impl Strategy<Value = String> {
        let pieces: Vec<&str> = PIECES.split('|').collect();
        prop::collection::vec(prop::sample::select(pieces), 0..8).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4000))]

        #[test]
        fn pieces_are_read_like_by_a_general_parser(text in pieces()) {
            for text in [text.clone(), format!("[\"{text}\", 1]")] {
                prop_assert_eq!(is_readable(text.as_bytes()), is_parsed(text.as_bytes()), "{:?}", text);
            }
        }

        /// Valid JSON with one byte that is replaced.
        #[test]
        fn damage_is_found_like_by_a_general_parser(place: prop::sample::Index, byte: u8) {
            let mut text = br#"{"a": [1, -2.5e3, "x\u00e9\ud83d\ude00", {}, [true, null]], "some longer text": ""}"#.to_vec();
            assert!(is_readable(&text));
            let place = place.index(text.len());
            text[place] = byte;
            prop_assert_eq!(is_readable(&text), is_parsed(&text), "{:?}", String::from_utf8_lossy(&text));
        }
    }

    #[test]
    fn what_is_readable_is_readable_inside_an_answer() {
        let nested = |n: usize| ["[".repeat(n), "]".repeat(n)].concat();
        let members = |n: usize| ["{\"a\":".repeat(n), "1".into(), "}".repeat(n)].concat();
        let within =
            [r#"{"a":[null,true,-1,18446744073709551616,1.5,"x\n"],"é":{}}"#.to_owned(), " 1 ".into()];
        for text in within.into_iter().chain([nested(DEPTH_MAX), members(DEPTH_MAX)]) {
            assert!(is_readable(text.as_bytes()), "{text}");
            let answer = format!(r#"{{"items":[{{"event":{{"data":{text}}}}}]}}"#);
            serde_json::from_str::<serde_json::Value>(&answer).expect("readable");
        }
        let valid = [nested(DEPTH_MAX + 1), nested(1 << 20), members(DEPTH_MAX + 1), "1e999".into()];
        for text in valid.into_iter().chain([r#"["\ud800"]"#.into(), r#"{"\ud800":1}"#.into()]) {
            assert!(crate::event::is_json(text.as_bytes()) && !is_readable(text.as_bytes()));
        }
        for text in ["", "{", "1 2", "\u{7f}"] {
            assert!(!is_readable(text.as_bytes()), "{text}");
        }
        assert!(!is_readable(b"\"\xff\""));
    }
}
