//! The fenced blocks of a Markdown text.

/// One fenced block: ```` ```sh terminal=server ```` has the language `sh` and the tag `terminal=server`.
#[derive(Debug)]
pub struct Block {
    /// The number of its first line of text, counted from 1.
    pub line: usize,
    pub language: String,
    pub tags: Vec<String>,
    pub text: String,
}

impl Block {
    pub fn has(&self, tag: &str) -> bool {
        self.tags.iter().any(|own| own == tag)
    }

    /// The value of a tag of the form `name=value`.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.tags.iter().find_map(|tag| tag.strip_prefix(name)?.strip_prefix('='))
    }
}

pub fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (index, line) in text.lines().enumerate() {
        match (&mut open, line.trim_start().strip_prefix("```")) {
            (None, Some(info)) => {
                let mut words = info.split_whitespace().map(str::to_owned);
                let language = words.next().unwrap_or_default();
                open = Some(Block { line: index + 2, language, tags: words.collect(), text: String::new() });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(block), None) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a block is not closed: {open:?}");
    blocks
}

/// The rows of every table, as the texts of their cells, without heads and rules.
pub fn rows(text: &str) -> Vec<Vec<String>> {
    let lines: Vec<&str> = text.lines().collect();
    let is_rule = |line: &str| line.starts_with('|') && line.chars().all(|c| "|-: ".contains(c));
    let mut rows = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let is_head = lines.get(index + 1).is_some_and(|next| is_rule(next));
        if line.starts_with('|') && !is_rule(line) && !is_head {
            rows.push(cells(line));
        }
    }
    rows
}

/// A bar that belongs to the text is written `\|`.
fn cells(line: &str) -> Vec<String> {
    let inner = line.trim().trim_matches('|').replace("\\|", "\u{0}");
    inner.split('|').map(|cell| cell.trim().replace('\u{0}', "|")).collect()
}

/// The texts between backticks, in order, without blocks. A text may continue on the next line.
pub fn codes(text: &str) -> Vec<String> {
    let mut fenced = false;
    let mut prose = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            prose.push_str(line.trim());
            prose.push(' ');
        }
    }
    prose.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Targets of links `[text](target)`.
pub fn links(text: &str) -> Vec<String> {
    let rest = text.split("](").skip(1);
    rest.filter_map(|rest| rest.split_once(')')).map(|(target, _)| target.to_owned()).collect()
}
