//! A line of the picture: pieces of text, each in its tone.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    Plain,
    Strong,
    Dim,
    Good,
    Waits,
    Bad,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    pub pieces: Vec<(Tone, String)>,
}

impl Line {
    pub fn of(tone: Tone, text: impl Into<String>) -> Line {
        Line::default().with(tone, text)
    }

    pub fn with(mut self, tone: Tone, text: impl Into<String>) -> Line {
        let text = text.into();
        if !text.is_empty() {
            self.pieces.push((tone, text));
        }
        self
    }

    /// Fills up with blanks to a column.
    pub fn to(self, column: usize) -> Line {
        let missing = column.saturating_sub(self.width());
        self.with(Tone::Plain, " ".repeat(missing))
    }

    pub fn width(&self) -> usize {
        self.pieces.iter().map(|(_, text)| text.width()).sum()
    }

    /// The part that fits into this number of columns.
    pub fn clip(&self, width: usize) -> Line {
        let mut left = width;
        let mut clipped = Line::default();
        for (tone, text) in &self.pieces {
            let fits = text.chars().take_while(|c| {
                let wide = c.width().unwrap_or(0);
                let has_room = wide <= left;
                left = if has_room { left - wide } else { 0 };
                has_room
            });
            clipped = clipped.with(*tone, fits.collect::<String>());
        }
        clipped
    }

    pub fn plain(&self) -> String {
        self.pieces.iter().map(|(_, text)| text.as_str()).collect::<String>().trim_end().to_owned()
    }

    pub fn ansi(&self) -> String {
        self.pieces.iter().map(|(tone, text)| tone.ansi(text)).collect()
    }
}

impl Tone {
    fn ansi(self, text: &str) -> String {
        let code = match self {
            Tone::Plain => return text.to_owned(),
            Tone::Strong => "1",
            Tone::Dim => "2",
            Tone::Good => "32",
            Tone::Waits => "33",
            Tone::Bad => "31",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_left_out() {
        let line = Line::of(Tone::Good, "✓ 1").to(5).with(Tone::Bad, "注文 failed");
        assert_eq!((line.width(), line.clip(99)), (16, line.clone()));
        assert_eq!(line.clip(8).plain(), "✓ 1  注");
        assert_eq!(line.clip(2).ansi(), "\u{1b}[32m✓ \u{1b}[0m");
    }
}
