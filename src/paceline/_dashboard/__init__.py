"""The dashboard: a server that shows runs to a browser, and the page that it shows them on.

What it answers (JSON of `_view/model.py` unless something else is said; `run` is a `Summary.id`):

    GET  /                                       the page; /?token=... is how one gets in, and is redirected
    GET  /app.js  /app.css                       what belongs to it
    GET  /api/about                              {version, root, control, now}
    GET  /api/runs                               {runs: [Summary]}
    GET  /api/run?run=                           Detail
    GET  /api/metrics?run=&name=a&name=b         {series: [Points], first, last}; &x=step|time &from= &to= &points=
    GET  /api/metrics.csv?run=[&name=]           all of them, a row for each report
    GET  /api/use?run=[&attempt=]                {ranks: [UseSeries]}
    GET  /api/logs?run=&attempt=&rank=           LogPage; &before= or &after= an offset, &limit=, &search=
    GET  /api/diff?a=&b=                         Diff
    GET  /api/search?run=[&metric=&mode=]        SearchDetail
    GET  /api/file?run=&path=                    one of Detail.files, as a download or, if it is a flame graph, a page
    GET  /api/report?run=                        one self-contained HTML page
    GET  /api/events[?run=]                      server-sent events: `runs` {runs: [Summary], gone: [id]} with those
                                                 that changed, `run` Detail, `points` {last: step}, each at most twice
                                                 a second; on connecting all there is, so nothing is missed by a break
    POST /api/stop?run=  {now}                   {text, state}; with --allow-control, and so are the two below
    POST /api/stacks?run=  {}                    {text}
    POST /api/profile?run=  {seconds, rank}      {text, state, files: [ShownFile], problems: [text]}
    GET  /metrics                                Prometheus text

An error is {error: text} with a fitting status. `first` and `last` are the steps that there are points of, 0 where
there are none. Each request carries the token: in the cookie that /?token= sets, or as `Authorization: Bearer TOKEN`.
A POST has `Content-Type: application/json` and the header `X-Paceline: 1`, which no other page's form can send;
it is 403 without --allow-control and 409, with the reason, where nobody drives the run or its driver does not answer.
Names that are not given mean all that have numbers; of `points`, each metric gets at most so many (20,000, and
fewer where many metrics are asked for at once).

A report (`/api/report`, `paceline report`) is the same page with the values of one run in it, in
`<script type="application/json" id="report">`:

    {about: {version, root, control, now},       `now`: when it was made; `root`: the run's path
     detail: Detail,
     points: {step: [Points], time: [Points]},   of every metric
     use: [UseSeries],
     logs: [{attempt, rank, page: LogPage}],     the last lines of each file of Detail.logs
     search: SearchDetail | null,                if the run is a search
     cut: [text]}                                what was left out because it is too much
"""
