package main

import (
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
)

// home is where Tranche is published; names of documents begin with it, as SPDX has it.
const home = "https://github.com/tranche-gpu/tranche"

// document is the part of SPDX 2.3 that is written.
type document struct {
	Version       string         `json:"spdxVersion"`
	ID            string         `json:"SPDXID"`
	DataLicense   string         `json:"dataLicense"`
	Name          string         `json:"name"`
	Namespace     string         `json:"documentNamespace"`
	Creation      creation       `json:"creationInfo"`
	Packages      []spdxPackage  `json:"packages"`
	Relationships []relationship `json:"relationships"`
}

type creation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	ID            string     `json:"SPDXID"`
	Name          string     `json:"name"`
	Version       string     `json:"versionInfo"`
	Download      string     `json:"downloadLocation"`
	FilesAnalyzed bool       `json:"filesAnalyzed"`
	Declared      string     `json:"licenseDeclared"`
	Concluded     string     `json:"licenseConcluded"`
	Copyright     string     `json:"copyrightText"`
	Checksums     []checksum `json:"checksums,omitempty"`
	References    []external `json:"externalRefs,omitempty"`
}

type checksum struct {
	Algorithm string `json:"algorithm"`
	Value     string `json:"checksumValue"`
}

type external struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

const (
	documentID = "SPDXRef-DOCUMENT"
	trancheID  = "SPDXRef-tranche"
	unknown    = "NOASSERTION"
)

// licenses are those of modules where it matters that they are known: a part of Nomad is under a license that is not open source.
var licenses = map[string]string{
	"github.com/hashicorp/nomad":     "BUSL-1.1 AND MPL-2.0",
	"github.com/hashicorp/nomad/api": "MPL-2.0",
}

// write writes the document for some programs. The epoch, in seconds, is the time that it names, so that two builds are equal.
func write(out io.Writer, version, epoch string, programs []string) error {
	seconds, err := strconv.ParseInt(cmp.Or(epoch, strconv.FormatInt(time.Now().Unix(), 10)), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	d := document{
		Version: "SPDX-2.3", ID: documentID, DataLicense: "CC0-1.0", Name: "tranche-" + version,
		Creation: creation{time.Unix(seconds, 0).UTC().Format(time.RFC3339), []string{"Tool: tranche-sbom"}},
		Packages: []spdxPackage{{
			ID: trancheID, Name: "tranche", Version: version, Download: home,
			Declared: "Apache-2.0", Concluded: "Apache-2.0", Copyright: unknown,
		}},
		Relationships: []relationship{{documentID, "DESCRIBES", trancheID}},
	}
	if err := d.addPrograms(programs); err != nil {
		return err
	}
	// Two documents never have the same name unless they say the same.
	text, err := json.Marshal(d)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(text)
	d.Namespace = home + "/spdx/" + version + "/" + hex.EncodeToString(sum[:16])
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(d)
}

// addPrograms adds each program, and each module once with every program that it is in.
func (d *document) addPrograms(programs []string) error {
	modules := map[string]spdxPackage{}
	for _, path := range programs {
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read the build information of %s: %w", path, err)
		}
		program, err := describeProgram(path, d.Packages[0].Version)
		if err != nil {
			return err
		}
		d.Packages = append(d.Packages, program)
		d.Relationships = append(d.Relationships, relationship{trancheID, "CONTAINS", program.ID})
		for _, module := range modulesOf(info) {
			modules[module.ID] = module
			d.Relationships = append(d.Relationships, relationship{program.ID, "DEPENDS_ON", module.ID})
		}
	}
	for _, id := range slices.Sorted(maps.Keys(modules)) {
		d.Packages = append(d.Packages, modules[id])
	}
	return nil
}

func describeProgram(path, version string) (spdxPackage, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return spdxPackage{}, err
	}
	sum := sha256.Sum256(content)
	name := filepath.Base(path)
	return spdxPackage{
		ID: spdxID("program", name), Name: name, Version: version, Download: home,
		Declared: "Apache-2.0", Concluded: unknown, Copyright: unknown,
		Checksums: []checksum{{"SHA256", hex.EncodeToString(sum[:])}},
	}, nil
}

// modulesOf lists the Go modules in a program, and the standard library.
func modulesOf(info *debug.BuildInfo) []spdxPackage {
	goVersion, _, _ := strings.Cut(strings.TrimPrefix(info.GoVersion, "go"), " ")
	all := []spdxPackage{describeModule("stdlib", goVersion, "https://go.dev", "BSD-3-Clause")}
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		all = append(all, describeModule(module.Path, module.Version, unknown, cmp.Or(licenses[module.Path], unknown)))
	}
	return all
}

func describeModule(path, version, download, license string) spdxPackage {
	return spdxPackage{
		ID: spdxID("go", path+"-"+version), Name: path, Version: version, Download: download,
		Declared: license, Concluded: unknown, Copyright: unknown,
		References: []external{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + path + "@" + version}},
	}
}

// spdxID makes an identifier, in which SPDX allows letters, digits, dots and dashes.
func spdxID(kind, name string) string {
	return "SPDXRef-" + kind + "-" + strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '-':
			return r
		}
		return '-'
	}, name)
}
