//! Resources on the command line: `TYPE/NAME …`, or `TYPE NAME …`.

use crate::exit::Usage;
use crate::kind::Kind;
use crate::route::Route;
use percent_encoding::percent_decode_str;
use std::fmt;

/// One resource by name. The name of a lane is `subscription/key`; names of subscriptions have no slash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    pub kind: Kind,
    pub name: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// All resources of these types.
    Kinds(Vec<Kind>),
    Named(Vec<Resource>),
}

impl Resource {
    pub fn new(kind: Kind, name: &str) -> Resource {
        Resource { kind, name: name.to_owned() }
    }

    /// From a word where only this type is possible: `orders`, or `sub/orders` with any name of the type.
    pub fn of(kind: Kind, word: &str) -> Resource {
        let named = word.split_once('/').filter(|(before, _)| Kind::parse(before) == Some(kind));
        match named.map(|(_, name)| decoded(name)) {
            Some(Ok(name)) => Resource { kind, name },
            _ => Resource::new(kind, word),
        }
    }

    pub fn route(&self) -> Route {
        match (self.kind, self.lane()) {
            (_, Some((subscription, key))) => Route::lane(subscription, key),
            _ => self.kind.route().below(&self.name),
        }
    }

    /// Subscription and key of a lane.
    pub fn lane(&self) -> Option<(&str, &str)> {
        if self.kind == Kind::Lane { self.name.split_once('/') } else { None }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind.word(), encoded(&self.name))
    }
}

/// Reads the words of a command. The words must all be `TYPE/NAME`, or the first one is the type of all names.
pub fn parse(words: &[String]) -> Result<Wanted, Usage> {
    let Some(first) = words.first() else { return Ok(Wanted::Kinds(Kind::MAIN.to_vec())) };
    if first.contains('/') {
        let named: Result<Vec<Resource>, Usage> = words.iter().map(|word| slashed(word)).collect();
        return named.map(Wanted::Named);
    }
    let kinds = kinds(first)?;
    let names = &words[1..];
    if names.is_empty() {
        return Ok(Wanted::Kinds(kinds));
    }
    let mut named = Vec::new();
    for kind in kinds {
        named.extend(of_kind(kind, names)?);
    }
    Ok(Wanted::Named(named))
}

/// As `parse`, where the command is about single resources.
pub fn named(words: &[String]) -> Result<Vec<Resource>, Usage> {
    let example = "name resources as TYPE/NAME or TYPE NAME, for example function/hello";
    if let [word] = words
        && !word.contains('/')
        && let Err(unknown) = kinds(word)
    {
        let is_near = nearest(word, Kind::words()).is_some();
        return Err(if is_near {
            unknown
        } else {
            Usage(format!("unknown resource type {word:?}; {example}"))
        });
    }
    let found = match parse(words)? {
        Wanted::Named(found) => found,
        Wanted::Kinds(_) if words.is_empty() => return Err(Usage(example.to_owned())),
        Wanted::Kinds(_) => return Err(Usage(format!("{}: the name is missing; {example}", words[0]))),
    };
    match found.iter().find(|one| one.kind == Kind::Lane && one.lane().is_none()) {
        Some(lane) => Err(Usage(format!("{lane}: the key is missing; use lane/SUBSCRIPTION/KEY"))),
        None => Ok(found),
    }
}

fn slashed(word: &str) -> Result<Resource, Usage> {
    let Some((kind, name)) = word.split_once('/') else {
        return Err(Usage(format!(
            "{word}: write every resource as TYPE/NAME, or put one TYPE before all names"
        )));
    };
    if name.is_empty() {
        return Err(Usage(format!("{word}: the name is missing")));
    }
    Ok(Resource { kind: self::kind(kind)?, name: decoded(name)? })
}

fn of_kind(kind: Kind, names: &[String]) -> Result<Vec<Resource>, Usage> {
    // `lane SUBSCRIPTION KEY`: the key is taken as it is, whatever it holds.
    if let (Kind::Lane, [subscription, key]) = (kind, names)
        && !subscription.contains('/')
    {
        return Ok(vec![Resource { kind, name: format!("{subscription}/{key}") }]);
    }
    let one = |name: &String| {
        let name = if kind == Kind::Lane { decoded(name)? } else { name.clone() };
        Ok(Resource { kind, name })
    };
    names.iter().map(one).collect()
}

/// A type, several with commas between them, or `all`.
fn kinds(text: &str) -> Result<Vec<Kind>, Usage> {
    if text == "all" {
        return Ok(Kind::MAIN.to_vec());
    }
    text.split(',').map(kind).collect()
}

pub fn kind(word: &str) -> Result<Kind, Usage> {
    Kind::parse(word).ok_or_else(|| {
        let hint = nearest(word, Kind::words()).map(|near| format!("did you mean {near:?}?"));
        let types = || format!("types: {}", Kind::all().map(Kind::plural).collect::<Vec<_>>().join(", "));
        Usage(format!("unknown resource type {word:?}; {}", hint.unwrap_or_else(types)))
    })
}

/// The candidate that was probably meant.
pub fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    const ALIKE_MIN: f64 = 0.75;
    let alike = |candidate: &&str| strsim::jaro_winkler(&word.to_lowercase(), &candidate.to_lowercase());
    let scored = candidates.map(|candidate| (alike(&candidate), candidate));
    let best = scored.max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    (best.0 >= ALIKE_MIN).then_some(best.1)
}

/// A name as one word that `xargs` and shells leave alone; percent-encoded where needed.
pub fn encoded(name: &str) -> String {
    let is_plain = |c: char| match c {
        '-' | '_' | '.' | '/' | ':' | '@' | ',' | '+' | '=' => true,
        c if c.is_ascii() => c.is_ascii_alphanumeric(),
        c => c.is_alphanumeric(),
    };
    let encode = |c: char| {
        let mut bytes = [0; 4];
        c.encode_utf8(&mut bytes).bytes().map(|byte| format!("%{byte:02X}")).collect::<String>()
    };
    name.chars().map(|c| if is_plain(c) { c.to_string() } else { encode(c) }).collect()
}

fn decoded(name: &str) -> Result<String, Usage> {
    let text = percent_decode_str(name).decode_utf8();
    text.map(Into::into).map_err(|_| Usage(format!("{name}: the percent-encoded bytes are not UTF-8")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect()
    }

    fn names(line: &str) -> Vec<String> {
        match parse(&words(line)).expect(line) {
            Wanted::Named(found) => found.iter().map(ToString::to_string).collect(),
            Wanted::Kinds(kinds) => kinds.into_iter().map(|kind| kind.plural().to_owned()).collect(),
        }
    }

    #[test]
    fn both_forms_name_the_same_resources() {
        assert_eq!(names("function a b"), ["function/a", "function/b"]);
        assert_eq!(names("fn/a sub/b lanes/orders/k"), ["function/a", "subscription/b", "lane/orders/k"]);
        assert_eq!(names("lane orders order-42"), ["lane/orders/order-42"]);
        assert_eq!(names("lane orders a/b"), ["lane/orders/a/b"]);
        assert_eq!(names("functions,subs"), ["functions", "subscriptions"]);
        assert_eq!(names("all"), ["functions", "agents", "subscriptions"]);
        assert_eq!(names(""), names("all"));
    }

    #[test]
    fn a_word_of_a_known_type_may_name_it() {
        for word in ["orders", "subscription/orders", "sub/orders", "subs/orders"] {
            assert_eq!(Resource::of(Kind::Subscription, word), Resource::new(Kind::Subscription, "orders"));
        }
        assert_eq!(Resource::of(Kind::Subscription, "fn/orders").name, "fn/orders");
    }

    #[test]
    fn what_is_printed_reads_back() {
        for key in
            ["order-42", "a/b", "a b", "50%", "50%25", "it's \"x\"", "注文 1", "line\nbreak", "/", "a//b/"]
        {
            let lane = Resource::new(Kind::Lane, &format!("orders/{key}"));
            let printed = lane.to_string();
            assert!(!printed.contains([' ', '\n', '\'', '"', '\\']), "{printed}");
            assert_eq!(slashed(&printed).expect("read"), lane, "{printed}");
            assert_eq!(lane.lane(), Some(("orders", key)));
        }
    }

    #[test]
    fn mistakes_are_explained() {
        let fault = |line: &str| named(&words(line)).expect_err(line).to_string();
        assert!(
            fault("subscrption/a")
                .contains("unknown resource type \"subscrption\"; did you mean \"subscription\"?")
        );
        assert!(fault("pods x").contains("types: functions, agents"));
        assert!(!fault("pods x").contains("did you mean"));
        assert!(fault("fn/a b").contains("TYPE/NAME"));
        assert!(fault("lane/orders").contains("lane/SUBSCRIPTION/KEY"));
        assert!(fault("function").contains("the name is missing"));
        assert!(fault("").contains("function/hello"));
        assert!(
            fault("hello").contains("unknown resource type \"hello\"")
                && fault("hello").contains("TYPE/NAME")
        );
    }
}
