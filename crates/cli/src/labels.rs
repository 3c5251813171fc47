//! Label selectors: `app=shop,tier!=test,team in (a,b),!old`.

use serde_json::Value;

/// Every requirement must be met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    key: String,
    test: Test,
}

/// As in Kubernetes, a resource without the label meets `!=` and `notin`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Test {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
}

impl Selector {
    pub fn parse(text: &str) -> Result<Selector, String> {
        let parts = split(text);
        let requirements: Result<Vec<_>, _> = parts.iter().map(|part| requirement(part.trim())).collect();
        requirements.map(Selector)
    }

    /// `labels` is the value of `metadata.labels`.
    pub fn takes(&self, labels: &Value) -> bool {
        self.0.iter().all(|requirement| requirement.test.takes(labels[&requirement.key].as_str()))
    }
}

impl Test {
    fn values(&self) -> &[String] {
        match self {
            Test::In(values) | Test::NotIn(values) => values,
            Test::Exists | Test::Absent => &[],
        }
    }

    fn takes(&self, label: Option<&str>) -> bool {
        let is_one_of =
            |values: &[String]| label.is_some_and(|label| values.iter().any(|value| value == label));
        match self {
            Test::In(values) => is_one_of(values),
            Test::NotIn(values) => !is_one_of(values),
            Test::Exists => label.is_some(),
            Test::Absent => label.is_none(),
        }
    }
}

/// Splits at the commas outside of parentheses.
fn split(text: &str) -> Vec<&str> {
    let mut depth = 0_u32;
    let at_comma = |c: char| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    };
    text.split(at_comma).collect()
}

fn requirement(text: &str) -> Result<Requirement, String> {
    let wrong = || format!("{text:?} is not a requirement like key=value, key!=value or key in (a,b)");
    let one = |value: &str| vec![value.trim().to_owned()];
    let (key, test) = if let Some((key, value)) = text.split_once("!=") {
        (key, Test::NotIn(one(value)))
    } else if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        (key, Test::In(one(value)))
    } else if let Some((key, values)) = text.split_once(" notin ") {
        (key, Test::NotIn(list(values)?))
    } else if let Some((key, values)) = text.split_once(" in ") {
        (key, Test::In(list(values)?))
    } else if let Some(key) = text.strip_prefix('!') {
        (key, Test::Absent)
    } else {
        (text, Test::Exists)
    };
    let key = key.trim();
    let is_value = |value: &String| value.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    let is_key = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    let is_valid = !key.is_empty() && key.chars().all(is_key) && test.values().iter().all(is_value);
    is_valid.then(|| Requirement { key: key.to_owned(), test }).ok_or_else(wrong)
}

fn list(text: &str) -> Result<Vec<String>, String> {
    let inside = text.trim().strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
    let inside = inside.ok_or_else(|| format!("{text:?} is not a list like (a,b)"))?;
    Ok(inside.split(',').map(|value| value.trim().to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn requirements_are_met_or_not() {
        let labels = json!({"app": "shop", "team": "a", "example.org/tier": "test"});
        let takes = |text: &str| Selector::parse(text).expect(text).takes(&labels);
        for text in [
            "app=shop",
            "app==shop,team=a",
            "app!=blog",
            "none!=x",
            "team in (a, b)",
            "team in (a,b),app notin (x,y)",
            "app",
            "!none",
            "example.org/tier=test",
        ] {
            assert!(takes(text), "{text}");
        }
        for text in ["app=blog", "app!=shop", "team in (b)", "none", "!app", "app=shop,team=b", "none=x"] {
            assert!(!takes(text), "{text}");
        }
        assert!(!Selector::parse("app=shop").expect("parsed").takes(&Value::Null));
    }

    #[test]
    fn invalid_selectors_are_refused() {
        for wrong in ["", "=x", "a in b", "a b", "app=shop,,x", "a=(", "a in (b,c d)", "a!=b=c"] {
            assert!(Selector::parse(wrong).is_err(), "{wrong}");
        }
    }
}
