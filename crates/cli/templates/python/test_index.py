import unittest
from types import SimpleNamespace
from unittest.mock import Mock

from index import handler


class HandlerTest(unittest.TestCase):
    def test_greets_by_name(self):
        event = SimpleNamespace(type="order.placed", data={"name": "Ada"})
        self.assertEqual(handler(event, Mock()), {"hello": "Ada"})


if __name__ == "__main__":
    unittest.main()
