"""The dashboard: a server that shows runs in a browser, and the page that it serves.

Routes (JSON of `_view/model.py` unless noted; `run` is a `Summary.id`):

    GET  /                                       the page; /?token=... logs in and redirects
    GET  /app.js  /app.css                       its script and style
    GET  /api/about                              {version, root, control, now}
    GET  /api/runs                               {runs: [Summary]}
    GET  /api/run?run=                           RunSnapshot
    GET  /api/metrics?run=&name=a&name=b         {series: [Points], first, last}; &x=step|time &from= &to= &points=
    GET  /api/metrics.csv?run=[&name=]           all points, one row per report
    GET  /api/use?run=[&attempt=]                {ranks: [UsageSeries]}
    GET  /api/logs?run=&attempt=&rank=           LogPage; &before= or &after= an offset, &limit=, &search=
    GET  /api/diff?a=&b=                         Diff
    GET  /api/search?run=[&metric=&mode=]        SearchDetail
    GET  /api/file?run=&path=                    one of RunSnapshot.files, as a download or, for a flame graph, a page
    GET  /api/report?run=                        one self-contained HTML page
    GET  /api/events[?run=]                      server-sent events: `runs` {runs: [Summary], gone: [id]} with those
                                                 that changed, `run` RunSnapshot, `points` {last: step}, each at most
                                                 twice a second; a new connection gets everything, so a break loses
                                                 nothing
    POST /api/stop?run=  {now}                   {text, state}; needs --allow-control, like the two below
    POST /api/stacks?run=  {}                    {text}
    POST /api/profile?run=  {seconds, rank}      {text, state, files: [ShownFile], problems: [text]}
    GET  /metrics                                Prometheus text

An error is {error: text} with a matching status. `first` and `last` are the first and last step that have points, 0 if
there are none. Each request carries the token: in the cookie that /?token= sets, or as `Authorization: Bearer TOKEN`. A
POST needs `Content-Type: application/json` and the header `X-Paceline: 1`, which no other page's form can send. It
fails with 403 without --allow-control, and with 409 and the reason if nobody drives the run or its driver does not
answer. Without `name`, a request returns all metrics that have numbers. `points` limits the points of each metric (at
most 20,000, and fewer if many metrics are requested at once).

A report (`/api/report`, `paceline report`) is the same page with the values of one run in it, in `<script
type="application/json" id="report">`:

    {about: {version, root, control, now},       `now`: when it was made; `root`: the run's path
     detail: RunSnapshot,
     points: {step: [Points], time: [Points]},   of every metric
     use: [UsageSeries],
     logs: [{attempt, rank, page: LogPage}],     the last lines of each file of RunSnapshot.logs
     search: SearchDetail | null,                if the run is a search
     cut: [text]}                                what was left out because it is too large
"""
