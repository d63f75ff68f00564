"""Read the pictures of a page back."""

import xml.etree.ElementTree as ET


def pictures_of(html, width="wide"):
    """Return the pictures for a wide page, or those for a narrow one."""
    found = [ET.fromstring("<svg" + part.split("</svg>")[0] + "</svg>") for part in html.split("<svg")[1:]]
    return [picture for picture in found if picture.get("class") == width]
