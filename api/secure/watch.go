package secure

import "log/slog"

// A File holds the value that a file defines, and follows the file's changes as those of
// certificates are followed: see [Guard.Refresh]. Its methods may be called concurrently.
type File[T any] struct{ watched *watchedFiles[T] }

// WatchFile reads a file for the first time, and returns an error if it cannot. what names the file
// in the log. read reads it; it is called again when the file has changed.
func WatchFile[T any](what, path string, read func(path string) (T, error)) (*File[T], error) {
	w, err := watch(what, func() (T, error) { return read(path) }, path)
	if err != nil {
		return nil, err
	}
	return &File[T]{w}, nil
}

// Get returns the value as of the last time that the file could be read.
func (f *File[T]) Get() T { return f.watched.get() }

// Refresh reads the file again if it has changed, and reports whether the value is new. Calls a
// second apart see a change within two seconds. It logs each fault once.
func (f *File[T]) Refresh(log *slog.Logger) bool { return f.watched.refreshFiles(log) }
