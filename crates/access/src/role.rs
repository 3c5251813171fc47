//! Roles and their inclusion.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Reads everything except secrets.
    Viewer,
    /// Acts on lanes, dead letters and replays; pauses and resumes subscriptions.
    Operator,
    /// Changes subscriptions, functions and agents; sends events and calls functions.
    Developer,
    /// Everything, including tokens and namespaces.
    Admin,
    /// Sends events and calls functions, but reads nothing.
    Producer,
    /// Reads the feed of one webhook endpoint. For its receiver.
    Endpoint,
    /// Also rotates the signing secret of this endpoint.
    EndpointAdmin,
}

impl Role {
    pub const ALL: [Role; 7] = [
        Role::Viewer,
        Role::Operator,
        Role::Developer,
        Role::Admin,
        Role::Producer,
        Role::Endpoint,
        Role::EndpointAdmin,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Operator => "operator",
            Role::Developer => "developer",
            Role::Admin => "admin",
            Role::Producer => "producer",
            Role::Endpoint => "endpoint",
            Role::EndpointAdmin => "endpoint-admin",
        }
    }

    /// True if the role is for one webhook endpoint, so a grant must name it.
    pub fn is_of_endpoint(self) -> bool {
        matches!(self, Role::Endpoint | Role::EndpointAdmin)
    }

    pub fn parse(name: &str) -> Option<Role> {
        Role::ALL.into_iter().find(|role| role.name() == name)
    }

    /// True if this role has all permissions of `need`.
    pub fn includes(self, need: Role) -> bool {
        match need {
            Role::Viewer => matches!(self, Role::Viewer | Role::Operator | Role::Developer | Role::Admin),
            Role::Operator => matches!(self, Role::Operator | Role::Developer | Role::Admin),
            Role::Developer => matches!(self, Role::Developer | Role::Admin),
            Role::Admin => self == Role::Admin,
            Role::Producer => matches!(self, Role::Producer | Role::Developer | Role::Admin),
            Role::Endpoint => matches!(self, Role::Endpoint | Role::EndpointAdmin | Role::Admin),
            Role::EndpointAdmin => matches!(self, Role::EndpointAdmin | Role::Admin),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_role_includes_those_below_it_and_no_other() {
        let included = |role: Role| -> Vec<&str> {
            Role::ALL.into_iter().filter(|need| role.includes(*need)).map(Role::name).collect()
        };
        assert_eq!(included(Role::Viewer), ["viewer"]);
        assert_eq!(included(Role::Operator), ["viewer", "operator"]);
        assert_eq!(included(Role::Developer), ["viewer", "operator", "developer", "producer"]);
        assert_eq!(included(Role::Admin).len(), Role::ALL.len());
        assert_eq!(included(Role::Producer), ["producer"]);
        assert_eq!(included(Role::Endpoint), ["endpoint"]);
        assert_eq!(included(Role::EndpointAdmin), ["endpoint", "endpoint-admin"]);
        for role in Role::ALL {
            assert_eq!(Role::parse(role.name()), Some(role));
        }
    }
}
