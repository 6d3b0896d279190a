package bill

import (
	"cmp"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/big"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/tranche-gpu/tranche/internal/printable"
	"github.com/tranche-gpu/tranche/usage"
)

// Cells returns the report as a table of texts for people: its head, its rows, and their total. The first names columns are
// names, all others numbers. Unknown values are "-", and control characters in names are escaped.
func (r *Report) Cells() (head []string, names int, rows [][]string, total []string) {
	head = map[By][]string{ByJob: {"Namespace", "Job"}, ByNamespace: {"Namespace"}, ByGPU: {"Node", "GPU", "Model", "UUID"}, ByNode: {"Node"}}[r.By]
	names = len(head)
	head = append(head, "GiB-hours", "GPU-hours", "Used", "Unused GiB-hours", "Peak", "Unobserved")
	if r.Prices.Known() {
		head = append(head, "Cost ("+r.Prices.Currency+")")
	}
	for _, row := range r.Rows {
		rows = append(rows, append(row.names(r.By), r.numbers(row)...))
	}
	total = append(make([]string, names), r.numbers(&r.Total)...)
	total[0] = "total"
	return head, names, rows, total
}

func (r *Report) numbers(row *Row) []string {
	numbers := []string{decimal(row.GiBHours(), 3), decimal(row.GPUHours(), 3), row.used100(), row.unused(), row.peak(), row.unobserved()}
	if r.Prices.Known() {
		numbers = append(numbers, decimal(row.Cost(r.Prices), 2))
	}
	return numbers
}

// Table writes the report for people.
func (r *Report) Table(out io.Writer) error {
	if len(r.Rows) == 0 {
		if _, err := fmt.Fprintf(out, "No claims from %s to %s.\n", readable(r.Query.From), readable(r.Query.To)); err != nil {
			return err
		}
		return r.printGaps(out)
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	head, _, rows, total := r.Cells()
	fmt.Fprintln(t, strings.ToUpper(strings.Join(head, "\t")))
	for _, cells := range append(rows, total) {
		fmt.Fprintln(t, strings.Join(cells, "\t"))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return r.printGaps(out)
}

func (r *Report) printGaps(out io.Writer) error {
	for i, g := range r.Gaps {
		if i == 0 {
			fmt.Fprintln(out)
		}
		if _, err := fmt.Fprintf(out, "From %s to %s on %s: %s.\n", g.From.Format(time.RFC3339), g.To.Format(time.RFC3339), shown(g.Node), shown(g.Reason)); err != nil {
			return err
		}
	}
	return nil
}

// names returns the first columns of a row. Names of jobs and containers may have any characters.
func (r *Row) names(by By) []string {
	switch by {
	case ByGPU:
		index := "-"
		if r.GPU.Index >= 0 {
			index = strconv.Itoa(r.GPU.Index)
		}
		return []string{shown(r.Node), index, shown(r.GPU.Model), shown(r.GPU.UUID)}
	case ByNode:
		return []string{shown(r.Node)}
	case ByJob:
		job := r.Job
		if r.Container != "" {
			job = "container " + r.Container
		}
		return []string{shown(r.Namespace), shown(job) + r.doubt()}
	}
	return []string{shown(r.Namespace) + r.doubt()}
}

// doubt marks names that only the container itself has stated.
func (r *Row) doubt() string {
	if r.Verified {
		return ""
	}
	return " (unverified)"
}

// shown returns a name as a table has it.
func shown(name string) string { return cmp.Or(printable.Text(name), "-") }

func (r *Row) used100() string {
	part, known := r.Used()
	if !known {
		return "-"
	}
	return fmt.Sprintf("%.0f%%", 100*part)
}

func (r *Row) unused() string {
	hours, known := r.UnusedGiBHours()
	if !known {
		return "-"
	}
	return fmt.Sprintf("%.1f", hours)
}

func (r *Row) peak() string {
	if r.PeakBytes == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f GiB", float64(r.PeakBytes)/gib)
}

func (r *Row) unobserved() string {
	return (time.Duration(r.UnobservedMillis()) * time.Millisecond).Round(time.Second).String()
}

// decimal writes a number with some digits after the point; "-" if it is not known.
func decimal(x *big.Rat, digits int) string {
	if x == nil {
		return "-"
	}
	return x.FloatString(digits)
}

func readable(t time.Time) string { return t.UTC().Format("2006-01-02 15:04Z") }

// digits is how many digits after the point programs get.
const digits = 9

// jsonRow is a row as JSON has it. Programs rely on its names.
type jsonRow struct {
	Namespace         *string      `json:"namespace,omitempty"`
	Job               *string      `json:"job,omitempty"`
	Container         string       `json:"container,omitempty"`
	Verified          *bool        `json:"verified,omitempty"`
	Node              *string      `json:"node,omitempty"`
	GPUUUID           string       `json:"gpu_uuid,omitempty"`
	GPUIndex          *int         `json:"gpu_index,omitempty"`
	GPUModel          string       `json:"gpu_model,omitempty"`
	ReservedSeconds   json.Number  `json:"reserved_seconds"`
	GiBHours          json.Number  `json:"gib_hours"`
	GPUHours          *json.Number `json:"gpu_hours"` // null: not known
	UsedRatio         *float64     `json:"used_ratio"`
	UnusedGiBHours    *float64     `json:"unused_gib_hours"`
	PeakBytes         uint64       `json:"peak_bytes"`
	UnobservedSeconds json.Number  `json:"unobserved_seconds"`
	Cost              *json.Number `json:"cost,omitempty"`
}

// JSON writes the report for programs.
func (r *Report) JSON(out io.Writer) error {
	rows := []jsonRow{}
	for _, row := range r.Rows {
		rows = append(rows, r.json(row))
	}
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(struct {
		By       By          `json:"by"`
		From     time.Time   `json:"from"`
		To       time.Time   `json:"to"`
		Node     string      `json:"node,omitempty"`
		Currency string      `json:"currency,omitempty"`
		Rows     []jsonRow   `json:"rows"`
		Total    jsonRow     `json:"total"`
		Gaps     []usage.Gap `json:"gaps"`
	}{r.By, r.Query.From, r.Query.To, r.Query.Node, r.Prices.Currency, rows, r.json(&r.Total), r.Gaps})
}

func (r *Report) json(row *Row) jsonRow {
	j := jsonRow{
		ReservedSeconds: seconds(row.ReservedMillis()), UnobservedSeconds: seconds(row.UnobservedMillis()),
		GiBHours: json.Number(decimal(row.GiBHours(), digits)), GPUHours: number(row.GPUHours()), PeakBytes: row.PeakBytes,
	}
	if part, known := row.Used(); known {
		part = math.Round(part*1e6) / 1e6
		j.UsedRatio = &part
	}
	if hours, known := row.UnusedGiBHours(); known {
		hours = math.Round(hours*1e6) / 1e6
		j.UnusedGiBHours = &hours
	}
	if r.Prices.Known() {
		j.Cost = number(row.Cost(r.Prices))
	}
	if row == &r.Total {
		return j
	}
	switch r.By {
	case ByGPU:
		j.GPUUUID, j.GPUIndex, j.GPUModel = row.GPU.UUID, &row.GPU.Index, row.GPU.Model
		fallthrough
	case ByNode:
		j.Node = &row.Node
	case ByJob:
		j.Job, j.Container = &row.Job, row.Container
		fallthrough
	case ByNamespace:
		j.Namespace, j.Verified = &row.Namespace, &row.Verified
	}
	return j
}

func seconds(millis int64) json.Number {
	return json.Number(big.NewRat(millis, 1000).FloatString(3))
}

func number(x *big.Rat) *json.Number {
	if x == nil {
		return nil
	}
	n := json.Number(decimal(x, digits))
	return &n
}

// CSV writes the report for programs and spreadsheets.
func (r *Report) CSV(out io.Writer) error {
	w := csv.NewWriter(out)
	head := map[By][]string{
		ByJob: {"namespace", "job", "container", "verified"}, ByNamespace: {"namespace", "verified"},
		ByGPU: {"node", "gpu_uuid", "gpu_index", "gpu_model"}, ByNode: {"node"},
	}[r.By]
	head = append(head, "reserved_seconds", "gib_hours", "gpu_hours", "used_ratio", "unused_gib_hours", "peak_bytes", "unobserved_seconds")
	if r.Prices.Known() {
		head = append(head, "cost", "currency")
	}
	_ = w.Write(head) // Flush keeps the error
	for _, row := range r.Rows {
		cells := row.cells(r.By)
		j := r.json(row)
		cells = append(cells, string(j.ReservedSeconds), string(j.GiBHours), orEmpty(j.GPUHours), fraction(j.UsedRatio), fraction(j.UnusedGiBHours),
			strconv.FormatUint(row.PeakBytes, 10), string(j.UnobservedSeconds))
		if r.Prices.Known() {
			cells = append(cells, orEmpty(j.Cost), r.Prices.Currency)
		}
		_ = w.Write(cells)
	}
	w.Flush()
	return w.Error()
}

func (r *Row) cells(by By) []string {
	switch by {
	case ByGPU:
		return []string{cell(r.Node), cell(r.GPU.UUID), strconv.Itoa(r.GPU.Index), cell(r.GPU.Model)}
	case ByNode:
		return []string{cell(r.Node)}
	case ByJob:
		return []string{cell(r.Namespace), cell(r.Job), cell(r.Container), strconv.FormatBool(r.Verified)}
	}
	return []string{cell(r.Namespace), strconv.FormatBool(r.Verified)}
}

// fraction writes a number with six digits after the point; nothing if it is not known.
func fraction(x *float64) string {
	if x == nil {
		return ""
	}
	return strconv.FormatFloat(*x, 'f', 6, 64)
}

func orEmpty(n *json.Number) string {
	if n == nil {
		return ""
	}
	return string(*n)
}

// cell returns a text that no spreadsheet takes for a formula: one that may be taken for one begins with an apostrophe.
// Control characters are escaped.
func cell(text string) string {
	if text == "" {
		return ""
	}
	text = printable.Text(text)
	if first := []rune(text)[0]; strings.ContainsRune("=+-@|%'＝＋－＠", first) {
		return "'" + text
	}
	return text
}
