package spec

import (
	"fmt"
	"regexp"
)

// maxHostname is the kernel's bound on a host name.
const maxHostname = 64

// hostnameForm is a name after RFC 1123: labels of letters, digits and hyphens, with dots between.
var hostnameForm = regexp.MustCompile(
	`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*$`)

// checkHostname checks the option hostname. A task in the host's network may have one: its name is its own all the same.
func (c *TaskConfig) checkHostname() error {
	switch {
	case c.Hostname == "":
		return nil
	case len(c.Hostname) > maxHostname || !hostnameForm.MatchString(c.Hostname):
		return fmt.Errorf("option hostname = %q: must be a name after RFC 1123: up to %d letters, digits, hyphens and dots, "+
			"such as \"web-1\"", c.Hostname, maxHostname)
	case c.UTSMode == "host":
		return fmt.Errorf("option hostname = %q: with uts_mode = \"host\" the task has the node's name; leave one of the two "+
			"out", c.Hostname)
	}
	return nil
}
