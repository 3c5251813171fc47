//! The state of `klambda top`, without any input or output: snapshots and keys come in, requests go out.

use std::collections::BTreeMap;
use std::time::Duration;

/// The state of the server at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Since any fixed moment.
    pub taken: Duration,
    pub uptime: Option<Duration>,
    /// The last position in the log; unknown to tokens that may not see the whole server.
    pub last_position: Option<u64>,
    pub delivered: u64,
    pub pending: u64,
    pub in_flight: u64,
    pub dead_letters: u64,
    /// Lanes by state.
    pub states: BTreeMap<String, u64>,
    pub lanes: Vec<Lane>,
    pub letters: Vec<Letter>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LaneId {
    pub namespace: String,
    pub subscription: String,
    pub key: String,
}

#[derive(Clone, Debug, Default)]
pub struct Lane {
    pub id: LaneId,
    pub state: String,
    pub depth: u64,
    pub oldest: Option<Duration>,
    pub waits_for: String,
}

#[derive(Clone, Debug, Default)]
pub struct Letter {
    pub id: String,
    pub lane: LaneId,
    pub reason: String,
    pub age: Option<Duration>,
    pub error: String,
}

/// Events per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    pub accepted: Option<f64>,
    pub delivered: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Lanes that need manual action first.
    #[default]
    Urgent,
    Deepest,
    Oldest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Resume,
    Skip,
    Replay,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    #[default]
    List,
    Filter,
    Inspect {
        title: String,
        lines: Vec<String>,
        scroll: usize,
    },
    Ask(Action, LaneId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Up,
    Down,
    Enter,
    Escape,
    Backspace,
    /// Ctrl-C.
    Interrupt,
    Char(char),
}

/// The action of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    Quit,
    Inspect(LaneId),
    Act(Action, LaneId),
}

#[derive(Debug, Default)]
pub struct Model {
    pub title: String,
    pub snapshot: Snapshot,
    pub rates: Rates,
    pub order: Order,
    pub filter: String,
    pub mode: Mode,
    /// The result of the last action, or why the server did not answer.
    pub message: Option<String>,
    selected: Option<LaneId>,
}

impl Order {
    pub fn word(self) -> &'static str {
        match self {
            Order::Urgent => "most urgent",
            Order::Deepest => "deepest",
            Order::Oldest => "oldest",
        }
    }

    fn next(self) -> Order {
        match self {
            Order::Urgent => Order::Deepest,
            Order::Deepest => Order::Oldest,
            Order::Oldest => Order::Urgent,
        }
    }
}

impl Action {
    pub fn question(self, lane: &LaneId) -> String {
        let LaneId { subscription, key, .. } = lane;
        match self {
            Action::Resume => format!("Resume lane {key} of {subscription}?"),
            Action::Skip => format!("Skip the event or gap that blocks lane {key} of {subscription}?"),
            Action::Replay => format!("Replay the dead letters of lane {key} of {subscription}?"),
        }
    }
}

impl Lane {
    /// The smaller, the more urgent.
    fn rank(&self) -> u8 {
        match self.state.as_str() {
            "parked" => 0,
            "gap" => 1,
            "retrying" => 2,
            "paused" => 3,
            _ => 4,
        }
    }
}

impl Model {
    pub fn new(title: String, filter: String) -> Model {
        Model { title, filter, ..Model::default() }
    }

    pub fn update(&mut self, next: Snapshot) {
        self.rates = rates(&self.snapshot, &next);
        self.snapshot = next;
        let order = self.order;
        self.snapshot.lanes.sort_by(|a, b| {
            let deeper = || b.depth.cmp(&a.depth);
            let older = || b.oldest.cmp(&a.oldest);
            let first = match order {
                Order::Urgent => a.rank().cmp(&b.rank()).then_with(deeper),
                Order::Deepest => deeper(),
                Order::Oldest => older(),
            };
            first.then_with(|| a.id.cmp(&b.id))
        });
    }

    /// Lanes that match the filter.
    pub fn visible(&self) -> Vec<&Lane> {
        let wanted = self.filter.to_lowercase();
        let has = |text: &str| text.to_lowercase().contains(&wanted);
        let lanes = self.snapshot.lanes.iter();
        lanes.filter(|lane| has(&lane.id.subscription) || has(&lane.id.key)).collect()
    }

    /// Index of the selected lane among the visible ones. The selection follows its lane through updates.
    pub fn selected(&self) -> Option<usize> {
        let visible = self.visible();
        let found = visible.iter().position(|lane| Some(&lane.id) == self.selected.as_ref());
        found.or((!visible.is_empty()).then_some(0))
    }

    pub fn selected_lane(&self) -> Option<LaneId> {
        let lane = self.visible().get(self.selected()?).map(|lane| lane.id.clone());
        lane.or_else(|| self.selected.clone())
    }

    pub fn inspect(&mut self, title: String, text: &str) {
        self.mode = Mode::Inspect { title, lines: text.lines().map(str::to_owned).collect(), scroll: 0 };
    }

    pub fn key(&mut self, key: Key) -> Option<Request> {
        if key == Key::Interrupt {
            return Some(Request::Quit);
        }
        match std::mem::take(&mut self.mode) {
            Mode::List => self.key_in_list(key),
            Mode::Filter => {
                self.key_in_filter(key);
                None
            }
            Mode::Inspect { title, lines, scroll } => {
                self.key_in_inspect(key, title, lines, scroll);
                None
            }
            Mode::Ask(action, lane) => match key {
                Key::Char('y' | 'Y') => Some(Request::Act(action, lane)),
                _ => {
                    self.message = Some("cancelled".to_owned());
                    None
                }
            },
        }
    }

    fn key_in_list(&mut self, key: Key) -> Option<Request> {
        match key {
            Key::Char('q') => return Some(Request::Quit),
            Key::Up | Key::Char('k') => self.step(-1),
            Key::Down | Key::Char('j') => self.step(1),
            Key::Enter => return self.selected_lane().map(Request::Inspect),
            Key::Char('r') => self.ask(Action::Resume),
            Key::Char('s') => self.ask(Action::Skip),
            Key::Char('p') => self.ask(Action::Replay),
            Key::Char('/') => self.mode = Mode::Filter,
            Key::Char('o') => {
                self.order = self.order.next();
                self.resort();
            }
            Key::Escape => {
                self.filter.clear();
                self.message = None;
            }
            Key::Backspace | Key::Interrupt | Key::Char(_) => {}
        }
        None
    }

    fn key_in_filter(&mut self, key: Key) {
        match key {
            Key::Enter => return,
            Key::Escape => return self.filter.clear(),
            Key::Backspace => drop(self.filter.pop()),
            Key::Char(c) => self.filter.push(c),
            Key::Up | Key::Down | Key::Interrupt => {}
        }
        self.mode = Mode::Filter;
    }

    fn key_in_inspect(&mut self, key: Key, title: String, lines: Vec<String>, scroll: usize) {
        let scroll = match key {
            Key::Up | Key::Char('k') => scroll.saturating_sub(1),
            Key::Down | Key::Char('j') => (scroll + 1).min(lines.len().saturating_sub(1)),
            _ => return,
        };
        self.mode = Mode::Inspect { title, lines, scroll };
    }

    fn step(&mut self, by: isize) {
        let visible = self.visible();
        let Some(now) = self.selected() else { return };
        let next = now.saturating_add_signed(by).min(visible.len() - 1);
        self.selected = Some(visible[next].id.clone());
    }

    fn ask(&mut self, action: Action) {
        match self.selected_lane() {
            Some(lane) => self.mode = Mode::Ask(action, lane),
            None => self.message = Some("no lane is selected".to_owned()),
        }
    }

    /// Sorts the current rows without changing the rates.
    fn resort(&mut self) {
        let (rates, snapshot) = (self.rates, std::mem::take(&mut self.snapshot));
        self.update(snapshot);
        self.rates = rates;
    }
}

fn rates(before: &Snapshot, now: &Snapshot) -> Rates {
    let seconds = now.taken.saturating_sub(before.taken).as_secs_f64();
    // Counters start again after a restart of the server; one update later the rates are right.
    let rate = |before: u64, now: u64| now.checked_sub(before).map(|count| count as f64 / seconds);
    if before.taken.is_zero() || seconds <= 0.0 {
        return Rates::default();
    }
    let accepted = before.last_position.zip(now.last_position).and_then(|(before, now)| rate(before, now));
    Rates { accepted, delivered: rate(before.delivered, now.delivered) }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn lane(key: &str, state: &str, depth: u64, oldest_s: u64) -> Lane {
        let id = LaneId { namespace: "default".into(), subscription: "orders".into(), key: key.into() };
        let oldest = Some(Duration::from_secs(oldest_s));
        Lane { id, state: state.into(), depth, oldest, waits_for: String::new() }
    }

    pub fn snapshot(second: u64, lanes: Vec<Lane>) -> Snapshot {
        let taken = Duration::from_secs(second);
        let last_position = Some(second * 100);
        Snapshot { taken, last_position, delivered: second * 50, lanes, ..Snapshot::default() }
    }

    fn model() -> Model {
        let mut model = Model::new("t".into(), String::new());
        let lanes = vec![lane("a", "open", 9, 1), lane("b", "parked", 3, 5), lane("c", "retrying", 4, 9)];
        model.update(snapshot(1, lanes));
        model
    }

    fn keys(model: &Model) -> String {
        model.visible().iter().map(|lane| lane.id.key.as_str()).collect()
    }

    #[test]
    fn rates_are_differences_over_time() {
        let mut model = model();
        assert_eq!(model.rates, Rates::default());
        model.update(snapshot(3, Vec::new()));
        assert_eq!(model.rates, Rates { accepted: Some(100.0), delivered: Some(50.0) });
        model.update(Snapshot { delivered: 0, ..snapshot(4, Vec::new()) });
        assert_eq!(model.rates.delivered, None, "the server started again");
    }

    #[test]
    fn lanes_are_sorted_and_filtered() {
        let mut model = model();
        assert_eq!(keys(&model), "bca");
        model.key(Key::Char('o'));
        assert_eq!(keys(&model), "acb");
        model.key(Key::Char('o'));
        assert_eq!(keys(&model), "cba");
        for key in [Key::Char('/'), Key::Char('x'), Key::Backspace, Key::Char('B')] {
            model.key(key);
        }
        assert_eq!((keys(&model).as_str(), &model.mode), ("b", &Mode::Filter));
        model.key(Key::Enter);
        assert_eq!((keys(&model).as_str(), &model.mode), ("b", &Mode::List));
        model.key(Key::Escape);
        assert_eq!(keys(&model), "cba");
    }

    #[test]
    fn the_selection_follows_its_lane() {
        let mut model = model();
        model.key(Key::Down);
        assert_eq!(model.selected_lane().expect("one").key, "c");
        let lanes = vec![lane("c", "open", 1, 1), lane("d", "parked", 1, 1), lane("e", "parked", 2, 1)];
        model.update(snapshot(2, lanes));
        assert_eq!((model.selected(), model.selected_lane().expect("one").key.as_str()), (Some(2), "c"));
        (0..5).for_each(|_| drop(model.key(Key::Down)));
        assert_eq!(model.selected(), Some(2));
        model.update(snapshot(3, Vec::new()));
        assert_eq!(model.selected(), None);
    }

    #[test]
    fn actions_ask_first() {
        for (key, action) in [('r', Action::Resume), ('s', Action::Skip), ('p', Action::Replay)] {
            let mut model = model();
            assert_eq!(model.key(Key::Char(key)), None);
            assert_eq!(model.key(Key::Char('n')), None);
            assert_eq!((&model.mode, model.message.as_deref()), (&Mode::List, Some("cancelled")));
            model.key(Key::Char(key));
            let Some(Request::Act(done, lane)) = model.key(Key::Char('y')) else { panic!("no request") };
            assert_eq!((done, lane.key.as_str()), (action, "b"));
        }
    }

    #[test]
    fn inspecting_scrolls_and_closes() {
        let mut model = model();
        assert!(matches!(model.key(Key::Enter), Some(Request::Inspect(lane)) if lane.key == "b"));
        model.inspect("lane b".into(), "one\ntwo\nthree");
        (0..9).for_each(|_| drop(model.key(Key::Down)));
        assert!(matches!(&model.mode, Mode::Inspect { scroll: 2, lines, .. } if lines.len() == 3));
        model.key(Key::Escape);
        assert_eq!(model.mode, Mode::List);
        assert_eq!(model.key(Key::Char('q')), Some(Request::Quit));
        model.key(Key::Char('/'));
        assert_eq!(model.key(Key::Interrupt), Some(Request::Quit), "also while a filter is typed");
    }
}
