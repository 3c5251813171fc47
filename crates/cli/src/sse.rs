//! A reader of Server-Sent Events. It reads only the fields that the server sends.

use std::io::{self, BufRead};

#[derive(Debug, Default, PartialEq, Eq)]
pub struct Message {
    pub id: Option<String>,
    pub data: String,
}

/// The messages of a stream. It ends with the connection; an incomplete last message is dropped.
pub struct Messages<R> {
    lines: R,
}

impl<R: BufRead> Messages<R> {
    pub fn new(lines: R) -> Messages<R> {
        Messages { lines }
    }

    fn next_message(&mut self) -> io::Result<Option<Message>> {
        let mut message = Message::default();
        let mut has_data = false;
        let mut line = String::new();
        loop {
            line.clear();
            if self.lines.read_line(&mut line)? == 0 {
                return Ok(None);
            }
            let line = line.trim_end_matches(['\r', '\n']);
            if line.is_empty() && has_data {
                return Ok(Some(message));
            }
            let (field, value) = line.split_once(':').unwrap_or((line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "id" => message.id = Some(value.to_owned()),
                "data" => {
                    if has_data {
                        message.data.push('\n');
                    }
                    message.data.push_str(value);
                    has_data = true;
                }
                // Comments (keep-alives) have an empty name. Other fields are not used.
                _ => {}
            }
        }
    }
}

impl<R: BufRead> Iterator for Messages<R> {
    type Item = io::Result<Message>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_message().transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_split_and_a_cut_one_is_dropped() {
        let stream = ": hello\n\nid: 7\ndata: {\"a\":\ndata: 1}\n\nevent: x\r\nid:8\r\ndata:b\r\n\r\nid: 9\ndata: cut\n";
        let messages: Vec<Message> = Messages::new(stream.as_bytes()).map(|m| m.expect("read")).collect();
        let message = |id: &str, data: &str| Message { id: Some(id.into()), data: data.into() };
        assert_eq!(messages, [message("7", "{\"a\":\n1}"), message("8", "b")]);
    }
}
