package storage

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/plugins/shared/hclspec"
)

// What the type of a mount can be.
const (
	mountBind   = "bind"
	mountVolume = "volume"
	mountTmpfs  = "tmpfs"
)

// Options are a task's options about what it mounts.
type Options struct {
	// Mounts are mount blocks, MountsList is the form mounts = [{…}].
	Mounts     []MountConfig `codec:"mount"`
	MountsList []MountConfig `codec:"mounts"`
	// Volumes are "SOURCE:TARGET[:OPTIONS]", Tmpfs "TARGET[:OPTIONS]".
	Volumes []string `codec:"volumes"`
	Tmpfs   []string `codec:"tmpfs"`
	// ImageVolumes says what becomes of the volumes that the image declares.
	ImageVolumes string `codec:"image_volumes"`
}

// MountConfig is a mount block of a task.
type MountConfig struct {
	// Type is "bind", "volume" (a named one, or an anonymous one without a source) or "tmpfs".
	Type     string `codec:"type"`
	Target   string `codec:"target"`
	Source   string `codec:"source"`
	Readonly bool   `codec:"readonly"`

	BindOptions   BindOptions   `codec:"bind_options"`
	TmpfsOptions  TmpfsOptions  `codec:"tmpfs_options"`
	VolumeOptions VolumeOptions `codec:"volume_options"`
}

// BindOptions belong to mounts of type bind.
type BindOptions struct {
	// Propagation is "private", "rprivate", "slave", "rslave", "shared" or "rshared".
	Propagation string `codec:"propagation"`
}

// TmpfsOptions belong to mounts of type tmpfs.
type TmpfsOptions struct {
	SizeBytes int64 `codec:"size"`
	// Mode is the directory's mode, in decimal as the docker driver has it (511 is 0777).
	Mode int64 `codec:"mode"`
}

// VolumeOptions belong to mounts of type volume.
type VolumeOptions struct {
	// NoCopy leaves a new volume empty instead of filling it with what the image has at the target.
	NoCopy bool `codec:"no_copy"`
}

// MountSpec is the schema of MountConfig.
var MountSpec = hclspec.NewObject(map[string]*hclspec.Spec{
	"type":     hclspec.NewDefault(hclspec.NewAttr("type", "string", false), hclspec.NewLiteral(`"volume"`)),
	"target":   hclspec.NewAttr("target", "string", false),
	"source":   hclspec.NewAttr("source", "string", false),
	"readonly": hclspec.NewAttr("readonly", "bool", false),
	"bind_options": hclspec.NewBlock("bind_options", false, hclspec.NewObject(map[string]*hclspec.Spec{
		"propagation": hclspec.NewAttr("propagation", "string", false),
	})),
	"tmpfs_options": hclspec.NewBlock("tmpfs_options", false, hclspec.NewObject(map[string]*hclspec.Spec{
		"size": hclspec.NewAttr("size", "number", false),
		"mode": hclspec.NewAttr("mode", "number", false),
	})),
	"volume_options": hclspec.NewBlock("volume_options", false, hclspec.NewObject(map[string]*hclspec.Spec{
		"no_copy": hclspec.NewAttr("no_copy", "bool", false),
	})),
})

// Check checks the options.
func (o *Options) Check(policy Policy) error {
	_, err := o.wantedMounts(policy)
	return errors.Join(err, o.checkImageVolumes())
}

// wantedMount is an entry of the options mount, mounts, volumes or tmpfs, in one form for all of them.
type wantedMount struct {
	// option is where it is in the jobspec, for messages.
	option string
	// kind is mountBind, mountVolume or mountTmpfs.
	kind string
	// source is a path (bind) or the name of a volume, empty for an anonymous one. target is the path in the container.
	source, target string
	readonly       bool
	propagation    string
	// relabel is relabelShared, relabelPrivate or empty.
	relabel string
	// create makes a source that is missing, as docker does for volumes and not for mount blocks.
	create bool
	// noCopy leaves a new volume empty.
	noCopy bool
	// tmpfs are the options of a tmpfs.
	tmpfs []string
}

var (
	propagations = []string{"private", "rprivate", "slave", "rslave", "shared", "rshared"}
	// tmpfsFlags and tmpfsValues are the options that a job may give a tmpfs: none that lets device nodes or set-user-ID
	// programs of its making count.
	tmpfsFlags  = []string{"ro", "rw", "exec", "noexec", "nosuid", "nodev", "noatime"}
	tmpfsValues = map[string]*regexp.Regexp{
		"size":      regexp.MustCompile(`^[0-9]+[kKmMgG%]?$`),
		"nr_inodes": regexp.MustCompile(`^[0-9]+[kKmMgG]?$`),
		"mode":      regexp.MustCompile(`^[0-7]{3,4}$`),
		"uid":       regexp.MustCompile(`^[0-9]{1,10}$`),
		"gid":       regexp.MustCompile(`^[0-9]{1,10}$`),
	}
	// volumeName is what a named volume may be called. It never starts with a dot: what does in volume_dir is ours.
	volumeName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`)
)

// taskDirNames are the directories that Nomad makes in the task's. As sources without a slash they are these, and not
// named volumes.
var taskDirNames = []string{".", "local", "secrets", "tmp"}

// maxTmpfsMode is 01777, the highest mode of a directory without set-ID bits.
const maxTmpfsMode = 0o1777

// wantedMounts takes the options mount, mounts, volumes and tmpfs apart and checks them.
func (o *Options) wantedMounts(policy Policy) ([]wantedMount, error) {
	var all []wantedMount
	var errs []error
	add := func(option string, w wantedMount, err error) {
		w.option = option
		if err == nil {
			w.target, err = mountTarget(w.target)
		}
		if err == nil {
			err = w.allowedBy(policy)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", option, err))
			return
		}
		all = append(all, w)
	}
	for i := range o.Mounts {
		w, err := o.Mounts[i].wanted()
		add(fmt.Sprintf("option mount[%d]", i), w, err)
	}
	for i := range o.MountsList {
		w, err := o.MountsList[i].wanted()
		add(fmt.Sprintf("option mounts[%d]", i), w, err)
	}
	for i, entry := range o.Volumes {
		w, err := parseVolume(entry, policy.SelinuxLabel)
		add(fmt.Sprintf("option volumes[%d] = %q", i, entry), w, err)
	}
	for i, entry := range o.Tmpfs {
		w, err := parseTmpfs(entry)
		add(fmt.Sprintf("option tmpfs[%d] = %q", i, entry), w, err)
	}
	return all, errors.Join(append(errs, checkTwice(all))...)
}

// wanted is a mount block.
func (m *MountConfig) wanted() (wantedMount, error) {
	w := wantedMount{kind: m.Type, source: m.Source, target: m.Target, readonly: m.Readonly}
	return w, errors.Join(m.checkOptions(), m.checkSource(), w.fill(m))
}

// fill takes over what belongs to the type of a mount block.
func (w *wantedMount) fill(m *MountConfig) error {
	switch m.Type {
	case mountBind:
		var err error
		w.propagation, err = checkedPropagation(m.BindOptions.Propagation)
		return err
	case mountVolume:
		w.propagation, w.noCopy = Private, m.VolumeOptions.NoCopy
		return nil
	case mountTmpfs:
		var err error
		w.tmpfs, err = m.TmpfsOptions.options()
		return err
	}
	return fmt.Errorf("type = %q: must be %q, %q or %q", m.Type, mountBind, mountVolume, mountTmpfs)
}

// checkOptions refuses options of another type than the mount's: who writes them expects them to do something.
func (m *MountConfig) checkOptions() error {
	var errs []error
	for _, block := range []struct {
		name, kind string
		set        bool
	}{
		{"bind_options", mountBind, m.BindOptions != BindOptions{}},
		{"tmpfs_options", mountTmpfs, m.TmpfsOptions != TmpfsOptions{}},
		{"volume_options", mountVolume, m.VolumeOptions != VolumeOptions{}},
	} {
		if block.set && block.kind != m.Type {
			errs = append(errs, fmt.Errorf("%s belong to a mount of type %q; this one's type is %q",
				block.name, block.kind, m.Type))
		}
	}
	return errors.Join(errs...)
}

func (m *MountConfig) checkSource() error {
	switch {
	case m.Type == mountBind && m.Source == "":
		return errors.New("source = \"\": a bind mount needs a path: a relative one lies in the task's directory")
	case m.Type == mountTmpfs && m.Source != "":
		return fmt.Errorf("source = %q: a tmpfs has none; leave it out", m.Source)
	case m.Type == mountVolume && m.Source != "":
		return checkVolumeName(m.Source)
	}
	return nil
}

func checkVolumeName(name string) error {
	if !volumeName.MatchString(name) || len(name) > 255 {
		return fmt.Errorf("source = %q: must be a name of letters, digits, \"_\", \".\" and \"-\" that starts with a letter "+
			"or digit; a path is a mount of type \"bind\"", name)
	}
	return nil
}

func checkedPropagation(value string) (string, error) {
	if value == "" {
		return Private, nil
	}
	if !slices.Contains(propagations, value) {
		return "", fmt.Errorf("propagation = %q: must be one of %q", value, propagations)
	}
	return value, nil
}

// options are the mount options of tmpfs_options.
func (t *TmpfsOptions) options() ([]string, error) {
	var opts []string
	if t.SizeBytes < 0 {
		return nil, fmt.Errorf("tmpfs_options.size = %d: must be a number of bytes", t.SizeBytes)
	}
	if t.SizeBytes > 0 {
		opts = append(opts, fmt.Sprintf("size=%d", t.SizeBytes))
	}
	if t.Mode < 0 || t.Mode > maxTmpfsMode {
		return nil, fmt.Errorf("tmpfs_options.mode = %d: must be a mode in decimal, from 0 to %d (which is 01777)",
			t.Mode, maxTmpfsMode)
	}
	if t.Mode > 0 {
		opts = append(opts, fmt.Sprintf("mode=%04o", t.Mode))
	}
	return opts, nil
}

// parseVolume takes an entry of volumes apart, "SOURCE:TARGET[:OPTIONS]".
func parseVolume(entry, selinuxLabel string) (wantedMount, error) {
	parts := strings.Split(entry, ":")
	if len(parts) < 2 || len(parts) > 3 || parts[0] == "" {
		return wantedMount{}, errors.New("must be SOURCE:TARGET or SOURCE:TARGET:OPTIONS")
	}
	w := wantedMount{kind: mountBind, source: parts[0], target: parts[1], create: true,
		propagation: Private, relabel: selinuxLabel}
	if !strings.Contains(w.source, "/") && !slices.Contains(taskDirNames, w.source) {
		w.kind = mountVolume
		if err := checkVolumeName(w.source); err != nil {
			return w, err
		}
	}
	if len(parts) < 3 {
		return w, nil
	}
	for _, option := range strings.Split(parts[2], ",") {
		if err := w.setOption(option); err != nil {
			return w, err
		}
	}
	return w, nil
}

// setOption takes one of the options of an entry of volumes.
func (w *wantedMount) setOption(option string) error {
	switch {
	case option == "ro" || option == "rw":
		w.readonly = option == "ro"
	case option == relabelShared || option == relabelPrivate:
		w.relabel = option
	case option == "nocopy" && w.kind == mountVolume:
		w.noCopy = true
	case slices.Contains(propagations, option) && w.kind == mountBind:
		w.propagation = option
	default:
		return fmt.Errorf("%q is no option of it: must be \"ro\", \"rw\", \"z\", \"Z\", for a path one of %q, for a named "+
			"volume \"nocopy\"", option, propagations)
	}
	return nil
}

// parseTmpfs takes an entry of tmpfs apart, "TARGET[:OPTIONS]".
func parseTmpfs(entry string) (wantedMount, error) {
	target, options, given := strings.Cut(entry, ":")
	w := wantedMount{kind: mountTmpfs, target: target}
	if !given {
		return w, nil
	}
	for _, option := range strings.Split(options, ",") {
		name, value, hasValue := strings.Cut(option, "=")
		form, known := tmpfsValues[name]
		if hasValue && known && form.MatchString(value) || !hasValue && slices.Contains(tmpfsFlags, option) {
			w.tmpfs = append(w.tmpfs, option)
			continue
		}
		return w, fmt.Errorf("%q is no option of it: must be one of %q, \"size=64m\", \"nr_inodes=1k\", \"mode=1777\", "+
			"\"uid=1000\" or \"gid=1000\"", option, tmpfsFlags)
	}
	return w, nil
}

// allowedBy reports whether the operator lets a job mount this. Where an absolute path lies only the start of the task can
// tell, when it knows the allocation's directory.
func (w *wantedMount) allowedBy(policy Policy) error {
	if w.kind == mountVolume && w.source != "" && !policy.Enabled {
		return fmt.Errorf("source = %q: named volumes are not enabled on this node; the operator can with volumes { enabled "+
			"= true } in the plugin's configuration; for a directory in the task's own write \"./%[1]s\"", w.source)
	}
	if w.kind == mountBind && !filepath.IsAbs(w.source) && !filepath.IsLocal(filepath.Join("task", w.source)) {
		return fmt.Errorf("source = %q: a relative path starts in the task's directory and must not leave the allocation's; "+
			"write a path of the host from the root", w.source)
	}
	return nil
}
