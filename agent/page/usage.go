package page

import (
	"bytes"
	"net/http"
	"time"

	"github.com/tranche-gpu/tranche/usage"
	"github.com/tranche-gpu/tranche/usage/bill"
)

// The layouts of the days and months in the addresses of usage pages.
const (
	dayLayout   = time.DateOnly
	monthLayout = "2006-01"
)

// usageDetails is what the usage page shows: one report, and where its neighbours are.
type usageDetails struct {
	By         bill.By
	Period     string // a day or a month
	Head       []cell
	Rows       [][]cell
	Total      []cell
	Gaps       []usage.Gap
	Others     []bill.By
	Before     string
	After      string // empty if that is yet to come
	ThisMonth  string
	Today      string
	Accounting string
}

// cell is a text in a table.
type cell struct {
	Text   string
	Number bool
}

// registerUsage adds the pages of what is accounted, and the same as CSV.
func (p *Pages) registerUsage(mux *http.ServeMux) {
	mux.HandleFunc("GET /usage", func(w http.ResponseWriter, r *http.Request) {
		p.serveUsage(w, r, bill.ByJob, time.Now().UTC().Format(monthLayout))
	})
	mux.HandleFunc("GET /usage/{by}/{period}", func(w http.ResponseWriter, r *http.Request) {
		p.serveUsage(w, r, bill.By(r.PathValue("by")), r.PathValue("period"))
	})
	mux.HandleFunc("GET /usage/{by}/{period}/csv", p.serveUsageCSV)
}

// parsePeriod parses a day or a month, and returns those before and after it.
func parsePeriod(text string) (from, to time.Time, before, after string, ok bool) {
	layout, days, months := dayLayout, 1, 0
	if len(text) == len(monthLayout) {
		layout, days, months = monthLayout, 0, 1
	}
	from, err := time.Parse(layout, text)
	if err != nil {
		return from, to, "", "", false
	}
	to = from.AddDate(0, months, days)
	if to.Before(time.Now()) {
		after = to.Format(layout)
	}
	return from, to, from.AddDate(0, -months, -days).Format(layout), after, true
}

func (p *Pages) serveUsage(w http.ResponseWriter, r *http.Request, by bill.By, period string) {
	from, to, before, after, ok := parsePeriod(period)
	if _, err := bill.ParseBy(string(by)); err != nil || !ok {
		p.missing(w, r, "There is no such report: write /usage/job/2026-11 or /usage/gpu/2026-11-26, for example.")
		return
	}
	v := p.newView(r, "Usage by "+string(by)+", "+period)
	now := time.Now().UTC()
	v.Report = &usageDetails{
		By: by, Period: period, Others: []bill.By{bill.ByJob, bill.ByNamespace, bill.ByGPU}, Before: before, After: after,
		ThisMonth: now.Format(monthLayout), Today: now.Format(dayLayout),
	}
	if v.Snapshot.Usage != nil {
		v.Report.Accounting = v.Snapshot.Usage.Seen.UTC().Format(TimeFormat)
	}
	report, err := p.Usage(r.Context(), by, from, to)
	if err != nil {
		v.Message = err.Error()
		p.write(w, http.StatusInternalServerError, "usage", v)
		return
	}
	report.SortByUnused()
	v.Report.add(report)
	p.write(w, http.StatusOK, "usage", v)
}

func (d *usageDetails) add(report *bill.Report) {
	head, names, rows, total := report.Cells()
	cells := func(texts []string) []cell {
		all := make([]cell, len(texts))
		for i, text := range texts {
			all[i] = cell{text, i >= names}
		}
		return all
	}
	d.Head, d.Total, d.Gaps = cells(head), cells(total), report.Gaps
	for _, row := range rows {
		d.Rows = append(d.Rows, cells(row))
	}
}

func (p *Pages) serveUsageCSV(w http.ResponseWriter, r *http.Request) {
	from, to, _, _, ok := parsePeriod(r.PathValue("period"))
	by, err := bill.ParseBy(r.PathValue("by"))
	if err != nil || !ok {
		p.missing(w, r, "There is no such report.")
		return
	}
	report, err := p.Usage(r.Context(), by, from, to)
	var out bytes.Buffer
	if err == nil {
		err = report.CSV(&out)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/csv; charset=utf-8")
	w.Header().Set("Content-Disposition", `attachment; filename="usage-`+string(by)+"-"+r.PathValue("period")+`.csv"`)
	_, _ = w.Write(out.Bytes())
}
