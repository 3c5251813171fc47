def handler(event, context):
    """Called for every event, in order per key. Returns the answer; raises to have the event tried again."""
    context.log.info("order placed", name=event.data["name"])
    return {"hello": event.data["name"]}
