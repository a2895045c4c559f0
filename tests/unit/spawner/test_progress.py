import asyncio
from types import SimpleNamespace

from carme_spawner import CarmeSpawner, spawner


def test_a_line_only_when_something_changed_and_never_html(monkeypatch):
    """JupyterHub's page shows `message` as text; `html_message` it would take as it is."""
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
    assert [event["message"] for event in events] == ["submitting", "waits", "<b>gpu01</b>", "up"]
    assert all(set(event) == {"progress", "message"} for event in events)
