"""PDF files with a line of text."""

from __future__ import annotations


def pdf_of(text: str) -> bytes:
    """One page that shows a text of ASCII letters."""
    drawing = b"BT /F1 12 Tf 20 100 Td (%b) Tj ET" % text.encode("ascii")
    page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 300 200]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>"
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        page,
        b"<</Length %d>>stream\n%b\nendstream" % (len(drawing), drawing),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    file, offsets = bytearray(b"%PDF-1.4\n"), []
    for number, content in enumerate(objects, 1):
        offsets.append(len(file))
        file += b"%d 0 obj\n%b\nendobj\n" % (number, content)
    start = len(file)
    file += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    file += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    file += b"trailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, start)
    return bytes(file)
