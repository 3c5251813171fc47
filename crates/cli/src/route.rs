//! Addresses in the REST API. Every name and key is encoded as one segment, so that none can reach another address.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

const UNRESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Path and query below the server's base URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Below the root of the API.
    path: String,
    query: String,
    place: Place,
}

/// The namespace of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// The address concerns the whole server.
    Server,
    /// The namespace of the client.
    Here,
    Named(String),
}

/// Resources outside of namespaces.
const OF_THE_SERVER: [&str; 5] = ["namespaces", "tokens", "status", "cost", "backup"];
const DEFAULT: &str = "default";

impl Route {
    pub fn new(segments: &[&str]) -> Route {
        let is_of_server = segments.first().is_some_and(|first| OF_THE_SERVER.contains(first));
        let place = if is_of_server { Place::Server } else { Place::Here };
        let root = Route { path: String::new(), query: String::new(), place };
        segments.iter().fold(root, |route, segment| route.below(segment))
    }

    /// Adds a segment to the path.
    pub fn below(mut self, segment: &str) -> Route {
        self.path.push('/');
        self.path.extend(utf8_percent_encode(segment, UNRESERVED));
        self
    }

    /// Uses this namespace instead of the client's.
    pub fn within(self, namespace: &str) -> Route {
        Route { place: Place::Named(namespace.to_owned()), ..self }
    }

    pub fn query(mut self, name: &str, value: impl ToString) -> Route {
        self.query.push(if self.query.is_empty() { '?' } else { '&' });
        self.query.push_str(name);
        self.query.push('=');
        self.query.extend(utf8_percent_encode(&value.to_string(), UNRESERVED));
        self
    }

    pub fn query_opt(self, name: &str, value: Option<impl ToString>) -> Route {
        match value {
            Some(value) => self.query(name, value),
            None => self,
        }
    }

    pub fn lane(subscription: &str, key: &str) -> Route {
        if fits_in_path(key) {
            return Route::new(&["lanes", subscription, key]);
        }
        Route::new(&["lanes"]).query("subscription", subscription).query("key", key)
    }

    pub fn lane_action(subscription: &str, key: &str, action: &str) -> Route {
        if fits_in_path(key) {
            return Route::new(&["lanes", subscription, key, action]);
        }
        Route::new(&["lanes", action]).query("subscription", subscription).query("key", key)
    }

    /// `here` is the namespace of the client.
    pub fn to_url(&self, base: &str, here: &str) -> String {
        let namespace = match &self.place {
            Place::Server => DEFAULT,
            Place::Here => here,
            Place::Named(name) => name,
        };
        let mut url = format!("{base}/api/v1");
        if namespace != DEFAULT {
            url.push_str("/namespaces/");
            url.extend(utf8_percent_encode(namespace, UNRESERVED));
        }
        url + &self.path + &self.query
    }
}

/// Proxies decode `%2F` and fold `.` and `..`, so keys like these travel in the query.
fn fits_in_path(key: &str) -> bool {
    !key.is_empty() && !key.contains('/') && key != "." && key != ".."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_encoded_or_go_by_the_query() {
        let url = |key| Route::lane("orders", key).to_url("", "default");
        assert_eq!(url("order-42"), "/api/v1/lanes/orders/order-42");
        assert_eq!(url("a b?ü#%"), "/api/v1/lanes/orders/a%20b%3F%C3%BC%23%25");
        assert_eq!(url("a/b&c"), "/api/v1/lanes?subscription=orders&key=a%2Fb%26c");
        assert_eq!(url(".."), "/api/v1/lanes?subscription=orders&key=..");
        assert_eq!(
            Route::lane_action("orders", "/x", "skip").to_url("http://h", "default"),
            "http://h/api/v1/lanes/skip?subscription=orders&key=%2Fx"
        );
        assert_eq!(
            Route::lane_action("orders", "x", "skip").to_url("", "default"),
            "/api/v1/lanes/orders/x/skip"
        );
    }

    #[test]
    fn a_namespace_is_part_of_the_path() {
        let lanes = Route::new(&["lanes"]).query("limit", 1);
        assert_eq!(lanes.to_url("", "default"), "/api/v1/lanes?limit=1");
        assert_eq!(lanes.to_url("", "shop"), "/api/v1/namespaces/shop/lanes?limit=1");
        assert_eq!(lanes.to_url("", "*"), "/api/v1/namespaces/%2A/lanes?limit=1");
        assert_eq!(lanes.within("other").to_url("", "shop"), "/api/v1/namespaces/other/lanes?limit=1");
        assert_eq!(Route::new(&["tokens", "ci"]).to_url("", "shop"), "/api/v1/tokens/ci");
    }
}
