//! JSONPath templates as kubectl has them: text with paths in braces, like `{.items[*].metadata.name}`.
//! `{range}` and `..` are not supported.

use serde_json::Value;

/// Text and paths, in the order in which they are printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Path(Path),
}

/// Steps from a value to the values inside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path(Vec<Step>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Member(String),
    /// Negative numbers count from the end.
    Index(i64),
    All,
    Filter(Filter),
}

/// `[?(@.status.phase=="Ready")]`
#[derive(Clone, Debug, PartialEq, Eq)]
struct Filter {
    path: Path,
    is_equal: bool,
    value: Value,
}

impl Template {
    /// A template without braces is one path.
    pub fn parse(text: &str) -> Result<Template, String> {
        if !text.contains('{') {
            return Ok(Template(vec![Part::Path(Path::parse(text)?)]));
        }
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, from)) = rest.split_once('{') {
            parts.push(Part::Text(unescaped(before)));
            let end = end_of(from, '}').ok_or_else(|| format!("{{{from}: the closing brace is missing"))?;
            parts.push(part(from[..end].trim())?);
            rest = &from[end + 1..];
        }
        parts.push(Part::Text(unescaped(rest)));
        Ok(Template(parts))
    }

    /// Several values of one path are separated by spaces. A path that leads nowhere prints nothing.
    pub fn render(&self, value: &Value) -> String {
        let part = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            Part::Path(path) => path.find(value).into_iter().map(shown).collect::<Vec<_>>().join(" "),
        };
        self.0.iter().map(part).collect()
    }
}

/// The text between braces.
fn part(text: &str) -> Result<Part, String> {
    if let Some(literal) = quoted(text) {
        return Ok(Part::Text(unescaped(literal)));
    }
    match text.split_whitespace().next() {
        Some(word @ ("range" | "end")) => Err(format!("{{{word}}} is not supported")),
        _ => Path::parse(text).map(Part::Path),
    }
}

impl Path {
    /// The first dot may be left out.
    pub fn parse(text: &str) -> Result<Path, String> {
        let mut steps = Vec::new();
        let mut rest = text.strip_prefix(['$', '@']).unwrap_or(text);
        if rest.is_empty() || rest == "." {
            return Ok(Path(steps));
        }
        if rest.contains("..") {
            return Err(format!("{text}: .. is not supported"));
        }
        while !rest.is_empty() {
            let (step, after) = match rest.strip_prefix('[') {
                Some(inside) => bracket(inside).map_err(|message| format!("{text}: {message}"))?,
                None => member(rest.strip_prefix('.').unwrap_or(rest)),
            };
            steps.extend(step);
            rest = after;
        }
        Ok(Path(steps))
    }

    pub fn find<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        let step =
            |found: Vec<&'a Value>, step: &Step| found.into_iter().flat_map(|value| step.of(value)).collect();
        self.0.iter().fold(vec![value], step)
    }
}

impl Step {
    fn of<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        match (self, value) {
            (Step::Member(name), Value::Object(members)) => members.get(name).into_iter().collect(),
            (Step::Index(index), Value::Array(items)) => at(items, *index).into_iter().collect(),
            (Step::All, Value::Array(items)) => items.iter().collect(),
            (Step::All, Value::Object(members)) => members.values().collect(),
            (Step::Filter(filter), Value::Array(items)) => {
                items.iter().filter(|item| filter.takes(item)).collect()
            }
            _ => Vec::new(),
        }
    }
}

impl Filter {
    fn takes(&self, item: &Value) -> bool {
        let is_same = self.path.find(item).first().is_some_and(|found| **found == self.value);
        is_same == self.is_equal
    }
}

fn at(items: &[Value], index: i64) -> Option<&Value> {
    let from_start = if index < 0 { index + items.len() as i64 } else { index };
    items.get(usize::try_from(from_start).ok()?)
}

/// A name up to the next step. A backslash keeps the character behind it: `labels.example\.org/team`.
fn member(text: &str) -> (Option<Step>, &str) {
    let mut name = String::new();
    let mut chars = text.char_indices();
    let end = loop {
        match chars.next() {
            Some((_, '\\')) => name.extend(chars.next().map(|(_, c)| c)),
            Some((at, '.' | '[')) => break at,
            Some((_, c)) => name.push(c),
            None => break text.len(),
        }
    };
    let step = match name.as_str() {
        "" => None,
        "*" => Some(Step::All),
        _ => Some(Step::Member(name)),
    };
    (step, &text[end..])
}

/// The text after an opening bracket, and the text after the closing one.
fn bracket(text: &str) -> Result<(Option<Step>, &str), String> {
    let end = end_of(text, ']').ok_or("the closing bracket is missing")?;
    let (inside, rest) = (text[..end].trim(), &text[end + 1..]);
    let step = if inside == "*" {
        Step::All
    } else if let Some(name) = quoted(inside) {
        Step::Member(name.to_owned())
    } else if let Some(condition) = inside.strip_prefix("?(").and_then(|rest| rest.strip_suffix(')')) {
        Step::Filter(filter(condition)?)
    } else {
        Step::Index(inside.parse().map_err(|_| format!("[{inside}] is not a number, *, 'name' or ?(…)"))?)
    };
    Ok((Some(step), rest))
}

fn filter(text: &str) -> Result<Filter, String> {
    let parts = text.split_once("==").map(|parts| (parts, true));
    let parts = parts.or_else(|| text.split_once("!=").map(|parts| (parts, false)));
    let ((path, value), is_equal) = parts.ok_or_else(|| format!("?({text}) needs == or !="))?;
    let value = match quoted(value.trim()) {
        Some(text) => Value::from(text),
        None => {
            serde_json::from_str(value.trim()).map_err(|_| format!("{}: quote the text", value.trim()))?
        }
    };
    Ok(Filter { path: Path::parse(path.trim())?, is_equal, value })
}

/// The position of the closing character outside of quotes.
fn end_of(text: &str, closing: char) -> Option<usize> {
    let mut quote = None;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (None, c) if c == closing => return Some(at),
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            _ => {}
        }
    }
    None
}

fn quoted(text: &str) -> Option<&str> {
    let inside = |quote: char| text.strip_prefix(quote)?.strip_suffix(quote);
    inside('"').or_else(|| inside('\''))
}

fn unescaped(text: &str) -> String {
    text.replace("\\n", "\n").replace("\\t", "\t")
}

/// Texts without quotes, everything else as JSON.
pub fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rendered(template: &str) -> String {
        let value = json!({"items": [
            {"metadata": {"name": "a", "labels": {"example.org/team": "x"}}, "status": {"phase": "Ready", "n": 1}},
            {"metadata": {"name": "b"}, "status": {"phase": "Failed", "n": 2}}]});
        Template::parse(template).expect(template).render(&value)
    }

    #[test]
    fn paths_lead_to_values() {
        for (template, expected) in [
            ("{.items[*].metadata.name}", "a b"),
            ("{.items[0].metadata.name}", "a"),
            ("{.items[-1].metadata.name}", "b"),
            ("{$.items[1]['metadata']['name']}", "b"),
            (".items[*].status.n", "1 2"),
            ("items[0].status", r#"{"n":1,"phase":"Ready"}"#),
            ("{.items[?(@.status.phase==\"Ready\")].metadata.name}", "a"),
            ("{.items[?(@.status.n!=1)].metadata.name}", "b"),
            (r"{.items[0].metadata.labels.example\.org/team}", "x"),
            ("{.items[0].metadata.labels['example.org/team']}", "x"),
            ("{.items[0].metadata.*}", r#"{"example.org/team":"x"} a"#),
            ("n={.items[0].status.n}{\"\\n\"}{.nothing}.\\n", "n=1\n.\n"),
            ("{.items[7].metadata.name}", ""),
        ] {
            assert_eq!(rendered(template), expected, "{template}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        for wrong in
            ["{.a", "{.a[}", "{.a[x]}", "{range .items[*]}", "{..name}", "{.a[?(@.b)]}", "{.a[?(@.b==c)]}"]
        {
            assert!(Template::parse(wrong).is_err(), "{wrong}");
        }
    }
}
