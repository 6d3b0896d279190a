package userns

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/moby/sys/user"
)

// SubIDFiles are the files in which a node's administrator sets ranges of IDs aside.
type SubIDFiles struct{ Users, Groups string }

// NodeFiles are those of the node.
var NodeFiles = SubIDFiles{"/etc/subuid", "/etc/subgid"}

// subIDOwner is in whose name these files set IDs aside for containers that get a range each, as for Podman's
// --userns=auto.
const subIDOwner = "containers"

// NodeRange returns the range of which each task with userns_mode = "auto" gets a part: the plugin's userns_range, else what
// the node sets aside for containers.
func NodeRange(option string, files SubIDFiles) (Range, error) {
	if option != "" {
		return ParseRange(option)
	}
	const advice = `; set the plugin's userns_range, as in "1000000:6553600", or set aside the same range of IDs for the ` +
		`user "containers" in /etc/subuid and /etc/subgid`
	users, err := readSubIDs(files.Users)
	if err != nil {
		return Range{}, fmt.Errorf("option userns_mode = \"auto\": no IDs are set aside for it on this node: %w%s",
			err, advice)
	}
	groups, err := readSubIDs(files.Groups)
	if err != nil || users != groups {
		return Range{}, errors.Join(fmt.Errorf("option userns_mode = \"auto\": the IDs set aside for users and for groups "+
			"on this node are not the same%s", advice), err)
	}
	return users, users.check("the range of \"" + subIDOwner + "\" in " + files.Users)
}

// ParseRange reads "FIRST:COUNT".
func ParseRange(given string) (Range, error) {
	option := fmt.Sprintf("plugin option userns_range = %q", given)
	first, count, ok := strings.Cut(given, ":")
	firstID, errFirst := strconv.ParseUint(first, 10, 32)
	number, errCount := strconv.ParseUint(count, 10, 32)
	if !ok || errFirst != nil || errCount != nil {
		return Range{}, fmt.Errorf("%s: must be FIRST:COUNT, such as \"1000000:6553600\"", option)
	}
	r := Range{firstID, number}
	return r, r.check(option)
}

// check makes sure that containers can be given IDs of the range, and none that users of the host may have.
func (r Range) check(what string) error {
	switch {
	case r.First < PerContainer:
		return fmt.Errorf("%s: must begin at %d or later, after the IDs of the host's own users", what, PerContainer)
	case r.Count < PerContainer:
		return fmt.Errorf("%s: must have at least %d IDs, as many as one container gets", what, PerContainer)
	case r.First+r.Count > math.MaxUint32:
		return fmt.Errorf("%s: must end before %d, the kernel's last ID", what, uint32(math.MaxUint32))
	}
	return nil
}

// readSubIDs reads the first range that a file sets aside for containers.
func readSubIDs(file string) (Range, error) {
	found, err := user.ParseSubIDFileFilter(file, func(s user.SubID) bool { return s.Name == subIDOwner })
	if err != nil {
		return Range{}, err
	}
	if len(found) == 0 || found[0].SubID < 0 || found[0].Count < 0 {
		return Range{}, fmt.Errorf("%s has no range for %q", file, subIDOwner)
	}
	return Range{uint64(found[0].SubID), uint64(found[0].Count)}, nil
}
