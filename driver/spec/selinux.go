package spec

import (
	"errors"
	"fmt"
	"os"
	"regexp"

	"github.com/containerd/containerd/v2/pkg/oci"
)

// selinuxLabel is the SELinux label in security_opt. Parts that are left out are those of the usual container policy.
type selinuxLabel struct {
	disable                 bool
	user, role, kind, level string
	// entries are the parts as they stand in the jobspec, for messages.
	entries []string
}

// selinuxPart is what a part of a label may be made of.
var selinuxPart = map[string]*regexp.Regexp{
	"user":  regexp.MustCompile(`^[A-Za-z0-9_.-]+$`),
	"role":  regexp.MustCompile(`^[A-Za-z0-9_.-]+$`),
	"type":  regexp.MustCompile(`^[A-Za-z0-9_.-]+$`),
	"level": regexp.MustCompile(`^s[0-9]+(-s[0-9]+)?(:c[0-9]+([.,]c[0-9]+)*)?$`),
}

// set parses "disable" or "PART:VALUE", and returns which part it sets.
func (l *selinuxLabel) set(value string) (part string, err error) {
	if value == "disable" {
		l.disable = true
		return value, nil
	}
	match := regexp.MustCompile(`^(user|role|type|level):(.*)$`).FindStringSubmatch(value)
	if match == nil {
		return value, errors.New("label must be \"disable\" or say user, role, type or level, as in \"label=type:svirt_t\"")
	}
	part, value = match[1], match[2]
	if !selinuxPart[part].MatchString(value) {
		return part, fmt.Errorf("%q is no %s of an SELinux label", value, part)
	}
	*map[string]*string{"user": &l.user, "role": &l.role, "type": &l.kind, "level": &l.level}[part] = value
	l.entries = append(l.entries, "label="+part+":"+value)
	return part, nil
}

// given reports whether the task requests a label.
func (l selinuxLabel) given() bool { return len(l.entries) > 0 }

// withSELinux labels the container's processes and its root filesystem where the task requests it. Otherwise
// the driver labels nothing: the policy of containers would then forbid them Nomad's task directories, which it does not
// relabel.
func withSELinux(options *TaskConfig) oci.SpecOpts {
	label := options.security().label
	if !label.given() {
		return unchanged
	}
	return specOption(func(s *Spec) error {
		s.Process.SelinuxLabel = fmt.Sprintf("%s:%s:%s:%s", or(label.user, "system_u"), or(label.role, "system_r"),
			or(label.kind, "container_t"), or(label.level, "s0"))
		s.Linux.MountLabel = fmt.Sprintf("%s:object_r:container_file_t:%s", or(label.user, "system_u"), or(label.level, "s0"))
		return nil
	})
}

func or(value, otherwise string) string {
	if value == "" {
		return otherwise
	}
	return value
}

// hasSELinux reports whether the kernel enforces, or would enforce, an SELinux policy.
func hasSELinux() bool {
	_, err := os.Stat("/sys/fs/selinux/enforce")
	return err == nil
}

// check refuses a label on a node without SELinux: the runtime's error would name no option.
func (l selinuxLabel) check(hasSELinux bool) error {
	if l.given() && !hasSELinux {
		return fmt.Errorf("option security_opt = %q: this node has no SELinux; leave the label out, or place the task "+
			"elsewhere", l.entries)
	}
	return nil
}
