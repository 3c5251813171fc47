//! Bounds the work of a schema before it is used.
//!
//! A schema is a graph: its parts are nodes, and its keywords are edges. Some keywords look at the same value of the data
//! (`allOf`, `$ref`), others at a value inside it (`properties`, `items`). A loop of the first sort never ends, and two ways
//! to the same part double the work at each level of the data. So the check follows the graph down the data, level by
//! level, and counts how often the parts look at one value.

use klambda_core::fault::Fault;
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashMap};

/// How deep data may be nested. JSON that is deeper is not read.
pub const DEPTH_MAX: usize = 128;
/// How often the parts of a schema may look at one value of the data.
pub const EVALUATIONS_MAX: u64 = 1000;
/// How many parts of a schema may follow each other on one value of the data.
pub const CHAIN_MAX: usize = 16;
/// How deep a schema may be nested.
const NESTING_MAX: usize = 64;

/// The path of a fault is a JSON pointer in the schema.
pub fn check(schema: &Value) -> Result<(), Fault> {
    let mut graph = Graph::default();
    let root = graph.read(schema)?;
    let order = graph.order()?;
    Levels::new(&graph, order).follow(root)
}

#[derive(Default)]
struct Graph {
    parts: Vec<Part>,
}

#[derive(Default)]
struct Part {
    pointer: String,
    /// Parts that look at the same value.
    same: Vec<usize>,
    /// Parts that look at a value inside.
    inside: Vec<(Step, usize)>,
}

/// The way from a value to a value inside it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Step {
    Member(String),
    AnyMember,
    /// Any member that has no step of its own from the same part.
    OtherMember,
    Item(usize),
    AnyItem,
}

/// A part that is not read yet.
struct Found<'a> {
    pointer: String,
    part: &'a Value,
    depth: usize,
}

struct Reader<'a> {
    root: &'a Value,
    /// Parts by their place in memory.
    known: HashMap<*const Value, usize>,
    open: Vec<(usize, Found<'a>)>,
    graph: &'a mut Graph,
}

impl Graph {
    fn read(&mut self, schema: &Value) -> Result<usize, Fault> {
        let mut reader = Reader { root: schema, known: HashMap::new(), open: Vec::new(), graph: self };
        let root = reader.part(Found { pointer: String::new(), part: schema, depth: 0 });
        while let Some((part, found)) = reader.open.pop() {
            reader.read(part, found)?;
        }
        Ok(root)
    }

    /// All parts, each before those that it leads to on the same value. An error if there is a loop.
    fn order(&self) -> Result<Vec<usize>, Fault> {
        let mut sorting =
            Sorting { graph: self, states: vec![State::New; self.parts.len()], done: Vec::new() };
        for part in 0..self.parts.len() {
            sorting.visit(part, 0)?;
        }
        sorting.done.reverse();
        Ok(sorting.done)
    }
}

/// How often each part looks at one value. Parts that do not look at it are left out.
type Counts = BTreeMap<usize, u64>;

/// Follows the graph down the levels of the data.
struct Levels<'a> {
    graph: &'a Graph,
    order: Vec<usize>,
    /// The place of each part in the order.
    ranks: Vec<usize>,
}

impl<'a> Levels<'a> {
    fn new(graph: &'a Graph, order: Vec<usize>) -> Levels<'a> {
        let mut ranks = vec![0; order.len()];
        order.iter().enumerate().for_each(|(rank, part)| ranks[*part] = rank);
        Levels { graph, order, ranks }
    }

    fn follow(&self, root: usize) -> Result<(), Fault> {
        let mut counts = self.spread(Counts::from([(root, 1)]))?;
        for _ in 0..DEPTH_MAX {
            let below = self.descend(&counts)?;
            if below == counts {
                return Ok(());
            }
            counts = below;
        }
        Ok(())
    }

    /// The looks at values one level below: for each part the most of any way to a value.
    fn descend(&self, counts: &Counts) -> Result<Counts, Fault> {
        let mut ways = Ways::default();
        for (part, count) in counts {
            ways.add(&self.graph.parts[*part], *count);
        }
        let mut most = Counts::new();
        for step in ways.by_step.keys() {
            for (part, count) in self.spread(ways.starts(step))? {
                let known = most.entry(part).or_default();
                *known = count.max(*known);
            }
        }
        Ok(most)
    }

    /// Adds the looks at the same value.
    fn spread(&self, starts: Counts) -> Result<Counts, Fault> {
        let mut open: Counts = starts.into_iter().map(|(part, count)| (self.ranks[part], count)).collect();
        let (mut done, mut total) = (Counts::new(), 0u64);
        while let Some((rank, count)) = open.pop_first() {
            let part = self.order[rank];
            total = total.saturating_add(count);
            if total > EVALUATIONS_MAX {
                return Err(too_much(&self.graph.parts[part]));
            }
            done.insert(part, count);
            self.graph.parts[part].same.iter().for_each(|next| add(&mut open, self.ranks[*next], count));
        }
        Ok(done)
    }
}

/// The ways from one value to the values inside it.
#[derive(Default)]
struct Ways<'a> {
    by_step: HashMap<&'a Step, Counts>,
    /// Of the looks at other members, those that a step of the same part excludes.
    excluded: HashMap<&'a Step, Counts>,
}

impl<'a> Ways<'a> {
    fn add(&mut self, part: &'a Part, count: u64) {
        let others = part.inside.iter().filter(|(step, _)| *step == Step::OtherMember);
        for (step, next) in &part.inside {
            add(self.by_step.entry(step).or_default(), *next, count);
            if let Step::Member(_) = step {
                let excluded = self.excluded.entry(step).or_default();
                others.clone().for_each(|(_, other)| add(excluded, *other, count));
            }
        }
    }

    /// All looks at the value that a step leads to.
    fn starts(&self, step: &Step) -> Counts {
        let mut starts = self.of(step).clone();
        let more: &[&Step] = match step {
            Step::Member(_) => &[&Step::AnyMember, &Step::OtherMember],
            Step::OtherMember => &[&Step::AnyMember],
            Step::Item(_) => &[&Step::AnyItem],
            Step::AnyMember | Step::AnyItem => &[],
        };
        for (next, count) in more.iter().flat_map(|step| self.of(step)) {
            add(&mut starts, *next, *count);
        }
        for (next, count) in self.excluded.get(step).into_iter().flatten() {
            starts.entry(*next).and_modify(|known| *known = known.saturating_sub(*count));
        }
        starts.retain(|_, count| *count > 0);
        starts
    }

    fn of(&self, step: &Step) -> &Counts {
        static NONE: Counts = Counts::new();
        self.by_step.get(step).unwrap_or(&NONE)
    }
}

fn add(counts: &mut Counts, at: usize, more: u64) {
    let count = counts.entry(at).or_default();
    *count = count.saturating_add(more);
}

fn too_much(part: &Part) -> Fault {
    let message = format!(
        "is too expensive: more than {EVALUATIONS_MAX} parts of the schema apply to one value of the data; \
         use fewer alternatives, or avoid alternatives that lead to the same part again"
    );
    Fault::new(part.pointer.clone(), message)
}

impl<'a> Reader<'a> {
    /// The number of a part, which is read later if it is new.
    fn part(&mut self, found: Found<'a>) -> usize {
        let address = std::ptr::from_ref(found.part);
        if let Some(known) = self.known.get(&address) {
            return *known;
        }
        let number = self.graph.parts.len();
        self.graph.parts.push(Part { pointer: found.pointer.clone(), ..Part::default() });
        self.known.insert(address, number);
        self.open.push((number, found));
        number
    }

    fn read(&mut self, part: usize, found: Found<'a>) -> Result<(), Fault> {
        if found.depth > NESTING_MAX {
            return Err(Fault::new(found.pointer, format!("is nested more than {NESTING_MAX} levels deep")));
        }
        let Value::Object(members) = found.part else { return Ok(()) };
        refuse(members, &found)?;
        for (keyword, value) in members {
            let below = |name: &str| format!("{}/{}", found.pointer, escaped(name));
            match keyword.as_str() {
                "$ref" => {
                    let target = self.target(value, &below(keyword))?;
                    self.graph.parts[part].same.push(target);
                }
                "$defs" | "definitions" => drop(self.children(&found, keyword, value)),
                "dependentSchemas" | "dependencies" | "allOf" | "anyOf" | "oneOf" | "not" | "if" | "then"
                | "else" => {
                    let children = self.children(&found, keyword, value);
                    self.graph.parts[part].same.extend(children.into_iter().map(|(_, child)| child));
                }
                _ => {
                    let children = self.inside(&found, keyword, value);
                    self.graph.parts[part].inside.extend(children);
                }
            }
        }
        Ok(())
    }

    /// The parts of a keyword that looks inside the value.
    fn inside(&mut self, found: &Found<'a>, keyword: &str, value: &'a Value) -> Vec<(Step, usize)> {
        let step: fn(Key) -> Step = match (keyword, value) {
            ("properties", _) => |key| Step::Member(key.name()),
            ("patternProperties" | "propertyNames", _) => |_| Step::AnyMember,
            ("additionalProperties" | "unevaluatedProperties", _) => |_| Step::OtherMember,
            ("prefixItems", _) | ("items", Value::Array(_)) => |key| Step::Item(key.index()),
            ("items" | "additionalItems" | "unevaluatedItems" | "contains", _) => |_| Step::AnyItem,
            _ => return Vec::new(),
        };
        let children = self.children(found, keyword, value);
        children.into_iter().map(|(key, child)| (step(key), child)).collect()
    }

    /// The schemas of a keyword: one, a list, or a map of them.
    fn children(&mut self, found: &Found<'a>, keyword: &str, value: &'a Value) -> Vec<(Key, usize)> {
        let pointer = format!("{}/{}", found.pointer, escaped(keyword));
        let is_map = matches!(
            keyword,
            "properties"
                | "patternProperties"
                | "dependentSchemas"
                | "dependencies"
                | "$defs"
                | "definitions"
        );
        let mut add = |key: Key, pointer: String, part: &'a Value| {
            (key, self.part(Found { pointer, part, depth: found.depth + 1 }))
        };
        match value {
            Value::Object(map) if is_map => {
                let one = |(name, part): (&String, &'a Value)| {
                    add(Key::Name(name.clone()), format!("{pointer}/{}", escaped(name)), part)
                };
                map.iter().map(one).collect()
            }
            Value::Array(list) => {
                let one = |(n, part)| add(Key::Index(n), format!("{pointer}/{n}"), part);
                list.iter().enumerate().map(one).collect()
            }
            Value::Object(_) | Value::Bool(_) => vec![add(Key::Index(0), pointer, value)],
            _ => Vec::new(),
        }
    }

    fn target(&mut self, reference: &Value, place: &str) -> Result<usize, Fault> {
        let wanted = "must be a JSON pointer in this schema, such as #/$defs/item; nothing is fetched";
        let wrong = |message: &str| Fault::new(place, message);
        let fragment = reference.as_str().and_then(|text| text.strip_prefix('#'));
        let pointer = fragment.and_then(|fragment| percent_decode_str(fragment).decode_utf8().ok());
        let pointer = pointer.filter(|pointer| pointer.is_empty() || pointer.starts_with('/'));
        let pointer = pointer.ok_or_else(|| wrong(wanted))?.into_owned();
        let part =
            self.root.pointer(&pointer).ok_or_else(|| wrong("refers to a part that does not exist"))?;
        let depth = pointer.matches('/').count();
        Ok(self.part(Found { pointer, part, depth }))
    }
}

/// The place of a part within its keyword.
enum Key {
    Name(String),
    Index(usize),
}

impl Key {
    fn name(self) -> String {
        match self {
            Key::Name(name) => name,
            Key::Index(index) => index.to_string(),
        }
    }

    fn index(self) -> usize {
        match self {
            Key::Name(_) => 0,
            Key::Index(index) => index,
        }
    }
}

/// Keywords that would make references depend on more than the place of a part.
fn refuse(members: &Map<String, Value>, found: &Found<'_>) -> Result<(), Fault> {
    const UNSUPPORTED: [&str; 4] = ["$dynamicRef", "$recursiveRef", "$vocabulary", "$recursiveAnchor"];
    let is_inner =
        |word: &&str| !found.pointer.is_empty() && members.get(*word).is_some_and(Value::is_string);
    let unsupported = UNSUPPORTED.into_iter().find(|word| members.contains_key(*word));
    let misplaced = ["$id", "$schema"].into_iter().find(is_inner);
    let wrong = |word: &str, message: &str| Err(Fault::new(format!("{}/{word}", found.pointer), message));
    match (unsupported, misplaced) {
        (Some(word), _) => wrong(word, "is not supported"),
        (None, Some(word)) => wrong(word, "is only supported at the top of the schema"),
        (None, None) => Ok(()),
    }
}

fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

#[derive(Clone, Copy)]
enum State {
    New,
    Open,
    /// How many parts follow each other from here.
    Done(usize),
}

struct Sorting<'a> {
    graph: &'a Graph,
    states: Vec<State>,
    done: Vec<usize>,
}

impl Sorting<'_> {
    /// Returns how many parts follow each other from here. `depth`: how many came before.
    fn visit(&mut self, part: usize, depth: usize) -> Result<usize, Fault> {
        match self.states[part] {
            State::Done(length) => return Ok(length),
            State::Open => {
                return Err(
                    self.fault(part, "refers to itself for the same value, so a check would never end")
                );
            }
            State::New => self.states[part] = State::Open,
        }
        let (graph, mut length) = (self.graph, 1);
        for next in &graph.parts[part].same {
            // The depth bounds the recursion, the length every chain.
            let follows = if depth < CHAIN_MAX { self.visit(*next, depth + 1)? } else { CHAIN_MAX };
            length = length.max(follows + 1);
        }
        if length > CHAIN_MAX {
            let message = format!("has more than {CHAIN_MAX} references or alternatives inside each other");
            return Err(self.fault(part, &message));
        }
        self.states[part] = State::Done(length);
        self.done.push(part);
        Ok(length)
    }

    fn fault(&self, part: usize, message: &str) -> Fault {
        Fault::new(self.graph.parts[part].pointer.clone(), message)
    }
}
