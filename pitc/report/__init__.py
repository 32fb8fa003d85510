"""The report: what was compiled, why, and what it gained, as one JSON file or one HTML page.

write.py     writes either; JSON
page.py      the page, from templates/; evidence.py: what is known beside the compiler's reports
view.py      one kind of machine: shares of work, refusals, rows of the table of nodes
boxes.py     which boxes a drawing of the graph has; layout.py: where they lie; drawing.py: as SVG
charts.py    times, densities
text.py      names, numbers and shares as text
"""
