//! One replica, as the fleet sees it.

use super::Endpoint;
use super::function::deployed::Deployed;
use super::probe::Expect;
use std::time::{Duration, Instant};
use tokio::sync::watch;

pub struct Replica {
    pub id: u64,
    /// Identifies its version.
    pub ordinal: u64,
    pub stage: Stage,
    /// Its address. Unknown until the engine has published the port of an image.
    pub endpoint: Option<Endpoint>,
    /// Which responses mean that it is up.
    pub expect: Expect,
    pub in_flight: u32,
    /// When it received its first open call, or responded last. Valid only while it has calls.
    pub owes_since: Instant,
    pub idle_since: Instant,
    /// It has responded to a request, not only to a health check, since the last unexpected end.
    pub answered: bool,
    /// Orders for its task. `None` for replicas at a URL, which have no task.
    pub orders: Option<watch::Sender<Order>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Starting,
    Ready,
    /// It owes a response, and receives no requests until it passes a health check.
    Asked,
    /// It did not respond quickly: others are started in its place.
    Silent,
    /// It receives no new requests.
    Draining,
}

/// The order to the task of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Run,
    /// Stop when the requests have ended, or after this time.
    Drain(Duration),
    /// The requests have ended.
    End(Duration),
    /// It does not respond: kill it now.
    Kill,
}

impl Replica {
    /// The preference for a request, lower is better. `None` if it cannot take one.
    pub fn rank(&self, deployed: &Deployed) -> Option<(bool, u32)> {
        let scaling = &deployed.version.scaling;
        let (target, hard) = (scaling.target_concurrency, scaling.hard_concurrency);
        let takes = match self.stage {
            Stage::Ready => true,
            Stage::Starting => !deployed.only_when_up,
            _ => false,
        };
        let open = self.ordinal == deployed.ordinal && takes && self.endpoint.is_some();
        // A starting replica ranks like one at its target, but wins if it has fewer requests.
        let second = self.stage == Stage::Starting || self.in_flight >= target;
        (open && self.in_flight < hard).then_some((second, self.in_flight))
    }

    /// Whether no other replica is needed in its place.
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

    /// The last request of a draining replica has ended.
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
