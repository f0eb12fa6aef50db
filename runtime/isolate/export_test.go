package isolate

// SetFiles replaces the files of an Isolator that OpenResctrl has made.
func SetFiles(i Isolator, files Files) { i.(*resctrl).files = files }
