//go:build tools

// Package nfpm pins the program that makes Debian's and RPM packages.
package nfpm

import (
	_ "github.com/goreleaser/nfpm/v2/cmd/nfpm"
)
