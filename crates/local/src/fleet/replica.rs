//! One replica as the fleet sees it.

use super::Endpoint;
use super::function::deployed::Deployed;
use super::probe::Expect;
use std::time::{Duration, Instant};
use tokio::sync::watch;

pub struct Replica {
    pub id: u64,
    /// Which version of its function it is of.
    pub ordinal: u64,
    pub stage: Stage,
    /// Where it is reached; unknown until an engine has given an image its port.
    pub endpoint: Option<Endpoint>,
    /// Which answers mean that it is up.
    pub expect: Expect,
    pub in_flight: u32,
    /// When it had no call before, or has answered last. Says something only while it has calls.
    pub owes_since: Instant,
    pub idle_since: Instant,
    /// It has answered a request, not just the question whether it is up, since the last end that nobody asked for.
    pub answered: bool,
    /// For the task that runs it; none runs for what is elsewhere.
    pub orders: Option<watch::Sender<Order>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Starting,
    Ready,
    /// It owes an answer, and gets no requests until it has said that it is up.
    Asked,
    /// It did not say so at once: others are started in its place.
    Silent,
    /// Gets no more requests.
    Draining,
}

/// What the task that runs a replica is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Run,
    /// End when the requests have, or after this long.
    Drain(Duration),
    /// The requests have ended.
    End(Duration),
    /// It does not answer: end at once.
    Kill,
}

impl Replica {
    /// How willingly it is given a request, less is better; nothing if not at all.
    pub fn rank(&self, deployed: &Deployed) -> Option<(bool, u32)> {
        let scaling = &deployed.version.scaling;
        let (target, hard) = (scaling.target_concurrency, scaling.hard_concurrency);
        let takes = match self.stage {
            Stage::Ready => true,
            Stage::Starting => !deployed.only_when_up,
            _ => false,
        };
        let open = self.ordinal == deployed.ordinal && takes && self.endpoint.is_some();
        // One that has yet to start is as good as one that has its share, if it has less to do.
        let second = self.stage == Stage::Starting || self.in_flight >= target;
        (open && self.in_flight < hard).then_some((second, self.in_flight))
    }

    /// Others need not be started in its place.
    pub fn is_live(&self) -> bool {
        !matches!(self.stage, Stage::Silent | Stage::Draining)
    }

    pub fn is_idle(&self) -> bool {
        self.stage == Stage::Ready && self.in_flight == 0
    }

    pub fn drain(&mut self, time: Duration) {
        self.stage = Stage::Draining;
        let order = if self.in_flight == 0 { Order::End(time) } else { Order::Drain(time) };
        self.order(order);
    }

    /// The last request of one that drains has ended.
    pub fn drained(&mut self) {
        let time = match self.orders.as_ref().map(|orders| *orders.borrow()) {
            Some(Order::Drain(time)) => time,
            _ => return,
        };
        self.order(Order::End(time));
    }

    pub fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            orders.send_replace(order);
        }
    }
}
