import asyncio
from types import SimpleNamespace

from carme_spawner import CarmeSpawner, spawner


def test_the_event_is_repeated_until_there_is_a_new_one_and_never_html(monkeypatch):
    """JupyterHub's page shows `message` as text; `html_message` it would take as it is. A repeated
    event is when the hub's handler sees that its client is gone."""
    monkeypatch.setattr(spawner, "EVENT_SECONDS", 0.001)
    job = SimpleNamespace(event={"progress": 5, "message": "submitting"})
    events = []

    async def listen():
        async for event in CarmeSpawner.progress(SimpleNamespace(_job=job)):
            events.append(event)
            if event["progress"] == 90:
                return

    async def start():
        for step, text in ((20, "waits"), (20, "waits"), (60, "<b>gpu01</b>"), (90, "up")):
            await asyncio.sleep(0.02)
            job.event = {"progress": step, "message": text}

    async def both():
        await asyncio.gather(listen(), start())

    asyncio.run(both())
    messages = [event["message"] for event in events]
    assert list(dict.fromkeys(messages)) == ["submitting", "waits", "<b>gpu01</b>", "up"]
    assert messages.count("waits") > 2
    assert all(set(event) == {"progress", "message"} for event in events)
