//! A role in a set of namespaces, and its holder.

use crate::role::Role;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

/// An authenticated caller: a name for the audit log, and the permissions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub name: Cow<'static, str>,
    pub grant: Grant,
}

/// One role in some namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    pub role: Role,
    pub namespaces: Namespaces,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Namespaces {
    /// Includes namespaces that are created later.
    All,
    Named(BTreeSet<String>),
    /// One webhook endpoint, and nothing else of its namespace.
    Endpoint {
        namespace: String,
        name: String,
    },
}

/// The scope in which a role is required.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach<'a> {
    In(&'a str),
    /// In all namespaces, for operations on the whole server.
    Everywhere,
    /// In at least one namespace.
    Somewhere,
    /// In one webhook endpoint.
    Endpoint {
        namespace: &'a str,
        name: &'a str,
    },
}

impl Identity {
    /// A caller with all permissions.
    pub const fn admin(name: &'static str) -> Identity {
        Identity {
            name: Cow::Borrowed(name),
            grant: Grant { role: Role::Admin, namespaces: Namespaces::All },
        }
    }

    pub fn allows(&self, need: Role, reach: Reach<'_>) -> bool {
        self.grant.allows(need, reach)
    }
}

impl Grant {
    /// The only namespace of the grant, which is the default for requests that do not name one.
    pub fn home(&self) -> Option<&str> {
        match &self.namespaces {
            Namespaces::Named(names) if names.len() == 1 => names.first().map(String::as_str),
            Namespaces::Endpoint { namespace, .. } => Some(namespace),
            Namespaces::Named(_) | Namespaces::All => None,
        }
    }

    /// The only webhook endpoint of the grant.
    pub fn endpoint(&self) -> Option<&str> {
        match &self.namespaces {
            Namespaces::Endpoint { name, .. } => Some(name),
            Namespaces::Named(_) | Namespaces::All => None,
        }
    }

    pub fn allows(&self, need: Role, reach: Reach<'_>) -> bool {
        self.role.includes(need) && self.namespaces.cover(reach)
    }
}

impl Namespaces {
    pub fn cover(&self, reach: Reach<'_>) -> bool {
        match (self, reach) {
            (Namespaces::All, _) => true,
            (Namespaces::Named(names), Reach::In(name)) => names.contains(name),
            (Namespaces::Named(names), Reach::Endpoint { namespace, .. }) => names.contains(namespace),
            (Namespaces::Named(names), Reach::Somewhere) => !names.is_empty(),
            (Namespaces::Named(_), Reach::Everywhere) => false,
            (Namespaces::Endpoint { namespace, name }, reach) => reach == Reach::Endpoint { namespace, name },
        }
    }

    /// True if the set contains all of `others`.
    pub fn include(&self, others: &Namespaces) -> bool {
        match (self, others) {
            (Namespaces::All, _) => true,
            (Namespaces::Named(_), Namespaces::All) => false,
            (Namespaces::Named(own), Namespaces::Named(others)) => own.is_superset(others),
            (Namespaces::Named(own), Namespaces::Endpoint { namespace, .. }) => own.contains(namespace),
            (Namespaces::Endpoint { .. }, others) => self == others,
        }
    }
}

/// Maximum number of names in a message. Further names are only counted.
const SHOWN_MAX: usize = 5;

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.role, self.namespaces)
    }
}

impl fmt::Display for Namespaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = match self {
            Namespaces::All => return f.write_str("all namespaces"),
            Namespaces::Endpoint { namespace, name } => {
                return write!(f, "webhook endpoint {name} of namespace {namespace}");
            }
            Namespaces::Named(names) => names,
        };
        let shown: Vec<&str> = names.iter().take(SHOWN_MAX).map(String::as_str).collect();
        write!(f, "namespace {}", shown.join(", "))?;
        match names.len().saturating_sub(SHOWN_MAX) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

impl fmt::Display for Reach<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reach::In(name) => write!(f, "namespace {name}"),
            Reach::Everywhere => f.write_str("all namespaces"),
            Reach::Somewhere => f.write_str("a namespace"),
            Reach::Endpoint { namespace, name } => {
                write!(f, "webhook endpoint {name} of namespace {namespace}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(names: &[&str]) -> Namespaces {
        Namespaces::Named(names.iter().map(|name| (*name).to_owned()).collect())
    }

    #[test]
    fn a_role_counts_in_its_namespaces_only() {
        let shop = Grant { role: Role::Operator, namespaces: named(&["shop", "billing"]) };
        assert!(shop.allows(Role::Viewer, Reach::In("shop")));
        assert!(shop.allows(Role::Operator, Reach::Somewhere));
        assert!(!shop.allows(Role::Developer, Reach::In("shop")));
        assert!(!shop.allows(Role::Viewer, Reach::In("default")));
        assert!(!shop.allows(Role::Viewer, Reach::Everywhere));
        let all = Grant { role: Role::Viewer, namespaces: Namespaces::All };
        assert!(all.allows(Role::Viewer, Reach::Everywhere) && all.allows(Role::Viewer, Reach::In("x")));
        assert!(!all.allows(Role::Operator, Reach::Somewhere));
        assert_eq!(shop.to_string(), "operator in namespace billing, shop");
    }

    #[test]
    fn a_grant_for_an_endpoint_covers_that_endpoint_and_nothing_else() {
        let endpoint = |namespace: &str, name: &str| Namespaces::Endpoint {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        // Even the highest role, which no token of an endpoint has.
        let own = Grant { role: Role::Admin, namespaces: endpoint("shop", "partner") };
        assert!(own.allows(Role::Endpoint, Reach::Endpoint { namespace: "shop", name: "partner" }));
        for reach in [
            Reach::Endpoint { namespace: "shop", name: "other" },
            Reach::Endpoint { namespace: "other", name: "partner" },
            Reach::In("shop"),
            Reach::Somewhere,
            Reach::Everywhere,
        ] {
            assert!(!own.allows(Role::Endpoint, reach) && !own.allows(Role::Viewer, reach), "{reach}");
        }
        assert_eq!((own.home(), own.endpoint()), (Some("shop"), Some("partner")));
        assert!(named(&["shop"]).include(&own.namespaces) && !named(&["b"]).include(&own.namespaces));
        assert!(
            !own.namespaces.include(&named(&["shop"])) && !own.namespaces.include(&endpoint("shop", "b"))
        );
        assert_eq!(own.to_string(), "admin in webhook endpoint partner of namespace shop");
    }

    #[test]
    fn nobody_passes_on_more_than_they_have() {
        assert!(named(&["a", "b"]).include(&named(&["a"])));
        assert!(!named(&["a"]).include(&named(&["a", "b"])));
        assert!(!named(&["a"]).include(&Namespaces::All));
        assert!(Namespaces::All.include(&Namespaces::All));
        let many: Vec<String> = (0..7).map(|n| format!("n{n}")).collect();
        let many = Namespaces::Named(many.into_iter().collect());
        assert_eq!(many.to_string(), "namespace n0, n1, n2, n3, n4 and 2 more");
    }
}
