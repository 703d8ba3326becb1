"""Small PDFs for tests, made on the spot."""

from __future__ import annotations

from pathlib import Path

from reportlab.pdfgen.canvas import Canvas

SENTENCES = [
    "The quarry opened on a ridge of grey limestone above the river.",
    "Blocks were split along the bedding and carted down in winter.",
    "A second bench was cut when the first had reached the water table.",
    "Each stone was marked with the number of its course and its face.",
    "The yard kept a ledger of weights, and of the men who moved them.",
]


def text_pdf(path: Path, title: str, pages: int = 1, size: tuple[float, float] = (595, 842)) -> Path:
    """Write a PDF of ``pages`` pages of plain text that begins with ``title``; its bytes depend on both alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas = Canvas(str(path), pagesize=size, invariant=True)
    for page in range(pages):
        # Pages that begin alike at one height would be taken for running headers.
        top = size[1] - 90 - 9 * (page % 8)
        canvas.setFont("Helvetica-Bold", 16)
        canvas.drawString(72, top, f"{title}, part {page + 1}")
        canvas.setFont("Helvetica", 11)
        for line in range(20):
            sentence = SENTENCES[(page + line) % len(SENTENCES)]
            canvas.drawString(72, top - 40 - 15 * line, f"{sentence} [{page + 1}.{line + 1}]")
        canvas.showPage()
    canvas.save()
    return path


def form_bomb(path: Path, title: str, levels: int = 11, width: int = 12) -> Path:
    """Write a PDF of three pages whose second draws forms within forms, ``width ** levels`` times in all.

    A few kilobytes that no reader of the page comes to the end of.
    """
    from pypdf import PdfReader, PdfWriter
    from pypdf.generic import ArrayObject, DecodedStreamObject, DictionaryObject, NameObject, NumberObject

    writer = PdfWriter(clone_from=PdfReader(text_pdf(path, title, 3)))
    inner = None
    for _ in range(levels):
        form = DecodedStreamObject()
        form.set_data(b"0 0 1 1 re f" if inner is None else b"/F Do " * width)
        box = [NumberObject(value) for value in (0, 0, 100, 100)]
        form.update({NameObject("/Type"): NameObject("/XObject"), NameObject("/Subtype"): NameObject("/Form")})
        form[NameObject("/BBox")] = ArrayObject(box)
        if inner is not None:
            form[NameObject("/Resources")] = DictionaryObject(
                {NameObject("/XObject"): DictionaryObject({NameObject("/F"): inner})}
            )
        inner = writer._add_object(form)
    page = writer.pages[1]
    resources = page["/Resources"].get_object()
    resources[NameObject("/XObject")] = DictionaryObject({NameObject("/F"): inner})
    content = DecodedStreamObject()
    content.set_data(b"/F Do")
    page[NameObject("/Contents")] = writer._add_object(content)
    writer.write(path)
    return path


def picture_bomb(path: Path, side: int = 30_000) -> Path:
    """Write a PDF whose one page shows a picture of ``side`` squared pixels, some kilobytes when compressed."""
    import zlib

    from pypdf import PdfReader, PdfWriter
    from pypdf.generic import DictionaryObject, NameObject, NumberObject, StreamObject

    writer = PdfWriter(clone_from=PdfReader(text_pdf(path, "Picture bomb")))
    packer = zlib.compressobj(9)
    row = bytes([0, 255] * (side // 2))
    picture = StreamObject()
    picture._data = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    for key, value in (("/Width", side), ("/Height", side), ("/BitsPerComponent", 8)):
        picture[NameObject(key)] = NumberObject(value)
    for key, name in (
        ("/Type", "/XObject"),
        ("/Subtype", "/Image"),
        ("/ColorSpace", "/DeviceGray"),
        ("/Filter", "/FlateDecode"),
    ):
        picture[NameObject(key)] = NameObject(name)
    page = writer.pages[0]
    resources = page["/Resources"].get_object()
    resources[NameObject("/XObject")] = DictionaryObject({NameObject("/I"): writer._add_object(picture)})
    content = StreamObject()
    content._data = b"q 595 0 0 842 0 0 cm /I Do Q"
    page[NameObject("/Contents")] = writer._add_object(content)
    writer.write(path)
    return path


def signed_pdf(path: Path, title: str, colours: list[str]) -> Path:
    """Write a PDF of text pages whose top left corners have these colours (``colour_engine``); an empty is white."""
    path.parent.mkdir(parents=True, exist_ok=True)
    canvas = Canvas(str(path), pagesize=(300, 200), invariant=True)
    for page, colour in enumerate(colours):
        if colour:
            canvas.setFillColor(colour)
            canvas.rect(0, 180, 20, 20, stroke=0, fill=1)
            canvas.setFillColor("black")
        canvas.setFont("Helvetica", 11)
        for line, sentence in enumerate(SENTENCES):
            canvas.drawString(30, 150 - 20 * line, f"{title} {page + 1}: {sentence}"[:45])
        canvas.showPage()
    canvas.save()
    return path
