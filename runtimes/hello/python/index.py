def handler(event, context):
    return {"hello": event.data["name"]}
