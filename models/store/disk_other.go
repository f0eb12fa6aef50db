//go:build !linux

package store

import "os"

// beginWriting does nothing: the system writes when it wants to.
func beginWriting(*os.File, int64, int64) {}

// freeRange does nothing: the caller frees what it can by truncating the file.
func freeRange(*os.File, int64, int64) {}
