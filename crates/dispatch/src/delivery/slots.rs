//! How the calls that may be open at once are shared: among namespaces that have something to call, and within each among
//! its subscriptions that do.

use klambda_core::ids::NamespaceId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    /// Who has fewer calls open than its share may begin one.
    UpToShare,
    /// What is left then goes to whoever is ready.
    BeyondShare,
}

#[derive(Debug)]
pub(super) struct Slots {
    all: u32,
    /// Only who is below its share may take the last ones, so that a newcomer never waits behind calls that hang.
    shared: u32,
    /// In the order of their numbers.
    claims: Vec<Claim>,
}

/// What the subscriptions of one namespace that are ready have together.
#[derive(Debug)]
struct Claim {
    namespace: NamespaceId,
    subscriptions: u32,
    open: u32,
}

impl Slots {
    /// What is kept for those below their share, as a part of all.
    const RESERVE: u32 = 8;

    /// `ready`: of each subscription that is ready its namespace, and how many calls it has open.
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

    /// Whether a subscription with so many calls open may begin one more, when so many are open in all.
    pub fn has_one(&self, pass: Pass, open: u32, namespace: NamespaceId, in_flight: u32) -> bool {
        if pass == Pass::BeyondShare {
            return open < self.shared;
        }
        let Ok(at) = self.place(namespace) else { return false };
        let claim = &self.claims[at];
        let share = (self.shared / self.claims.len() as u32).max(1);
        // With more subscriptions than calls for its namespace, a share of one each would be too much.
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

    /// Gives slots in turn to subscriptions that never end a call, as the engine does.
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
