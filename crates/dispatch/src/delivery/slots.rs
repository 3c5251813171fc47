//! Shares the limit of open calls among the namespaces with ready work, and within each namespace among its
//! subscriptions with ready work.

use klambda_core::ids::NamespaceId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// Subscriptions below their share may start calls.
    UpToShare,
    /// Any ready subscription may use the remaining slots.
    BeyondShare,
}

#[derive(Debug)]
pub(super) struct Slots {
    all: u32,
    /// Slots above this number are reserved for subscriptions below their share, so that a newcomer never waits
    /// behind calls that hang.
    shared: u32,
    /// Sorted by namespace.
    claims: Vec<Claim>,
}

/// The ready subscriptions of one namespace.
#[derive(Debug)]
struct Claim {
    namespace: NamespaceId,
    subscriptions: u32,
    open: u32,
}

impl Slots {
    /// One slot in `RESERVE` is kept for subscriptions below their share.
    const RESERVE: u32 = 8;

    /// `ready` lists the namespace and the number of open calls of each ready subscription.
    pub fn new(all: u32, ready: impl Iterator<Item = (NamespaceId, u32)>) -> Slots {
        let mut slots = Slots { all, shared: all - all / Slots::RESERVE, claims: Vec::new() };
        for (namespace, open) in ready {
            match slots.place(namespace) {
                Ok(at) => {
                    slots.claims[at].subscriptions += 1;
                    slots.claims[at].open += open;
                }
                Err(at) => slots.claims.insert(at, Claim { namespace, subscriptions: 1, open }),
            }
        }
        slots
    }

    fn place(&self, namespace: NamespaceId) -> Result<usize, usize> {
        self.claims.binary_search_by_key(&namespace, |claim| claim.namespace)
    }

    /// True if a subscription with `in_flight` calls may start one more while `open` calls are open in total.
    pub fn has_one(&self, pass: Pass, open: u32, namespace: NamespaceId, in_flight: u32) -> bool {
        if pass == Pass::BeyondShare {
            return open < self.shared;
        }
        let Ok(at) = self.place(namespace) else { return false };
        let claim = &self.claims[at];
        let share = (self.shared / self.claims.len() as u32).max(1);
        // If a namespace has more subscriptions than slots, one slot each would exceed its share.
        let is_within = claim.subscriptions <= share || claim.open < share;
        open < self.all && in_flight < (share / claim.subscriptions).max(1) && is_within
    }

    pub fn took_one(&mut self, namespace: NamespaceId) {
        if let Ok(at) = self.place(namespace) {
            self.claims[at].open += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Assigns slots in turn to subscriptions that never finish a call, as the engine does.
    fn given(all: u32, namespaces: &[u64]) -> Vec<u32> {
        let mut open = vec![0; namespaces.len()];
        let ready = |open: &[u32]| -> Vec<(NamespaceId, u32)> {
            namespaces.iter().zip(open).map(|(n, open)| (NamespaceId(*n), *open)).collect()
        };
        let mut slots = Slots::new(all, ready(&open).into_iter());
        for pass in [Pass::UpToShare, Pass::BeyondShare] {
            let mut went_on = true;
            while std::mem::take(&mut went_on) {
                for n in 0..namespaces.len() {
                    let namespace = NamespaceId(namespaces[n]);
                    if slots.has_one(pass, open.iter().sum(), namespace, open[n]) {
                        open[n] += 1;
                        slots.took_one(namespace);
                        went_on = true;
                    }
                }
            }
        }
        open
    }

    #[test]
    fn namespaces_share_alike_however_many_subscriptions_each_has() {
        assert_eq!(given(64, &[0]), [56]);
        assert_eq!(given(64, &[0, 0]), [28, 28]);
        assert_eq!(given(64, &[7, 0, 0, 0, 0]), [28, 7, 7, 7, 7]);
        let mut many = vec![0; 100];
        many.push(7);
        let given = given(64, &many);
        assert_eq!((given[100], given[..100].iter().sum::<u32>()), (28, 28));
    }
}
