"""Reports about runs and sweeps: one page to show, the same as text, tables and pictures.

data         what lies on disk: runs, sweeps, metrics, states
groups       which runs belong together: methods, environments, seeds
statistics   IQM, intervals, profiles, probability of improvement
curves       over env steps, updates or wall time; over seeds
comparison   how methods compare, what mattered, what cannot be concluded
tables       plain columns: `rlx.runs`, csv
page         the HTML file, from `page.html`, `page.css` and `page.js`
text         Markdown and JSON
pictures     PNG and SVG, by matplotlib
watch        the page of a sweep under way, served on the loopback address
command      the verbs `report` and `plot`
"""
