package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/hashicorp/nomad/api"
	"github.com/spf13/cobra"
	"github.com/zclconf/go-cty/cty"

	"github.com/tranche-gpu/tranche/internal/explain"
	"github.com/tranche-gpu/tranche/internal/namedfile"
	"github.com/tranche-gpu/tranche/internal/nomadapi"
	"github.com/tranche-gpu/tranche/internal/printable"
)

// The exit codes of `tranche explain` where a job gets no place now.
const (
	exitWaits = 2
	exitNever = 3
)

type explainOptions struct {
	namespace string
	variables []string
	varFile   string
	json      bool
}

func (a *app) explainCommand() *cobra.Command {
	var o explainOptions
	cmd := &cobra.Command{
		Use:   "explain JOBSPEC|JOB",
		Short: "Explain why a Nomad job waits for GPUs",
		Long: `Explain why a Nomad job, or the job of a jobspec, waits for GPUs: the answer of Nomad's scheduler to a plan of the job,
which changes nothing, how much of each GPU is free, and which jobs have the rest.

The environment names the server and a token, as for the command nomad: NOMAD_ADDR, NOMAD_TOKEN, NOMAD_CACERT, … The
token needs the capabilities submit-job and read-job in the job's namespace, and node:read. What allocations have that it may
not see is counted from the nodes' statistics, without their names.

The exit status is 0 if all of the job runs or fits now, 2 if a group waits, 3 if a group can never be placed on the
current nodes, and 1 if that is unknown.`,
		Example: `  tranche explain train.nomad.hcl
  tranche explain --var image=registry.example.com/train:v3 train.nomad.hcl
  tranche explain --namespace research train`,
		Args: withUsage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error { return a.explain(cmd.Context(), o, args[0]) },
	}
	cmd.Flags().StringVar(&o.namespace, "namespace", "", "`namespace` of the job (default NOMAD_NAMESPACE, or the jobspec's)")
	cmd.Flags().StringArrayVar(&o.variables, "var", nil, "a variable of the jobspec, as `NAME=VALUE`")
	cmd.Flags().StringVar(&o.varFile, "var-file", "", "a `file` with variables of the jobspec")
	cmd.Flags().BoolVar(&o.json, "json", false, "print JSON, for programs")
	return cmd
}

func (a *app) explain(ctx context.Context, o explainOptions, name string) error {
	variables, err := o.variableFile()
	if err != nil {
		return err
	}
	if err := nomadapi.CheckEnvironment(); err != nil {
		return err
	}
	config := api.DefaultConfig()
	config.Namespace = cmp.Or(o.namespace, config.Namespace) // in which the token has to be allowed to have a jobspec parsed, too
	client, err := api.NewClient(config)
	if err != nil {
		return fmt.Errorf("the environment of Nomad's client: %w", err)
	}
	job, err := explain.Find(ctx, client, name, config.Namespace, variables)
	if err == nil {
		var report *explain.Report
		if report, err = explain.Explain(ctx, client, job); err == nil {
			return a.printExplanation(o, report)
		}
	}
	return explainAccess(err, config.Address)
}

// explainAccess adds to an error how Nomad is reached, where that is what is wrong.
func explainAccess(err error, address string) error {
	var unreachable *url.Error
	var response api.UnexpectedResponseError
	switch {
	case errors.As(err, &unreachable):
		return fmt.Errorf("%w; set NOMAD_ADDR to the address of Nomad's API", err)
	case errors.As(err, &response) && response.StatusCode() == http.StatusForbidden:
		return fmt.Errorf("%w; set NOMAD_TOKEN to a token that may do this at %s", err, address)
	}
	return err
}

// variableFile is the text of the variable file that the API takes.
func (o explainOptions) variableFile() (string, error) {
	var text strings.Builder
	if o.varFile != "" {
		content, err := os.ReadFile(o.varFile)
		if err != nil {
			return "", namedfile.Error("--var-file", err)
		}
		text.Write(content)
		text.WriteString("\n")
	}
	for _, variable := range o.variables {
		name, value, found := strings.Cut(variable, "=")
		if !found {
			return "", fmt.Errorf("--var %q: it has to be NAME=VALUE", variable)
		}
		if !strings.HasPrefix(value, "[") && !strings.HasPrefix(value, "{") { // else a list or an object
			value = string(hclwrite.TokensForValue(cty.StringVal(value)).Bytes()) // which HCL converts to what the variable is
		}
		fmt.Fprintf(&text, "%s = %s\n", name, value)
	}
	return text.String(), nil
}

func (a *app) printExplanation(o explainOptions, r *explain.Report) (err error) {
	if o.json {
		err = a.printJSON(r)
	} else {
		w := bufio.NewWriter(a.stdout) // which keeps the first error
		printGroups(w, r)
		printDevices(w, r.Devices)
		err = w.Flush()
	}
	if err != nil {
		return err
	}
	verdict := func(v explain.Verdict) bool {
		return slices.ContainsFunc(r.Groups, func(g explain.Group) bool { return g.Verdict == v })
	}
	switch {
	case verdict(explain.Never):
		return &exitError{code: exitNever} // the report tells the rest
	case verdict(explain.Waits):
		return &exitError{code: exitWaits}
	}
	return nil
}

func printGroups(w io.Writer, r *explain.Report) {
	fmt.Fprintf(w, "Job %s in namespace %s\n", printable.Text(r.Job), printable.Text(r.Namespace))
	for _, g := range r.Groups {
		fmt.Fprintf(w, "\nGroup %s %s: %s\n", printable.Text(g.Name), g.Verdict, printable.Text(g.Reason))
		for _, request := range g.Requests {
			fmt.Fprintf(w, "  task %s requests %d of %s\n", printable.Text(request.Task), request.Count, printable.Text(request.Device))
			for _, constraint := range request.Constraints {
				fmt.Fprintf(w, "    where %s\n", printable.Text(constraint))
			}
		}
		if len(g.Requests) == 0 {
			fmt.Fprintln(w, "  it requests no device")
		}
	}
}

func printDevices(w io.Writer, devices []explain.Device) {
	if len(devices) == 0 {
		return
	}
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NODE\tDEVICE\tTOTAL\tFREE\tUSED BY\tUNHEALTHY")
	for _, d := range devices {
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%s\t%s\n", printable.Text(d.Node), printable.Text(d.Name), d.Total, d.Free, describeUses(d.Used), describeUses(d.Unhealthy))
	}
	_ = t.Flush() // the writer keeps the error
}

func describeUses(all []explain.Use) string {
	var texts []string
	for _, use := range all {
		texts = append(texts, fmt.Sprintf("%s (%d)", printable.Text(use.By), use.Count))
	}
	if texts == nil {
		return "-"
	}
	return strings.Join(texts, ", ")
}
