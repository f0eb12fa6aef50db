package onnx

import (
	"bytes"
	"path/filepath"
	"strings"
)

// A foreignForm is a form of files that are taken for models: how they begin, and what to do.
type foreignForm struct {
	begin string
	cure  string
}

const (
	ofPyTorch    = "export the model: torch.onnx.export(model, example, \"model.onnx\", dynamo=True)"
	ofTensorFlow = "export the model: python -m tf2onnx.convert --saved-model DIR --output model.onnx"
	ofKeras      = "export the model: python -m tf2onnx.convert --keras FILE --output model.onnx"
	ofSklearn    = "export the model: skl2onnx.to_onnx(model, X[:1]) for scikit-learn, " +
		"onnxmltools.convert_lightgbm or convert_xgboost for trees"
	ofCatBoost = "export the model: model.save_model(\"model.onnx\", format=\"onnx\")"
)

var foreignForms = []foreignForm{
	{"version https://git-lfs.github.com/spec/",
		"it is a pointer of Git LFS, not the file: run git lfs pull where it was cloned"},
	{"version https://hawser.github.com/spec/",
		"it is a pointer of Git LFS, not the file: run git lfs pull where it was cloned"},
	{"PK\x03\x04", "it is a ZIP file, as torch.save and Keras write: " + ofPyTorch},
	{"\x80\x02", "it is a Python pickle: " + ofSklearn},
	{"\x80\x03", "it is a Python pickle: " + ofSklearn},
	{"\x80\x04", "it is a Python pickle: " + ofSklearn},
	{"\x80\x05", "it is a Python pickle: " + ofSklearn},
	{"\x89HDF\r\n", "it is an HDF5 file, as Keras writes: " + ofKeras},
	{"CBM1", "it is a model of CatBoost: " + ofCatBoost},
	{"tree\nversion=", "it is a model of LightGBM: " + ofSklearn},
	{"\x1f\x8b", "it is compressed by gzip: unpack it with gunzip"},
	{"\x28\xb5\x2f\xfd", "it is compressed by zstd: unpack it with unzstd"},
	{"\xef\xbb\xbf", "it is a text with a byte order mark, not the bytes of a model"},
	{"<", "it is a page in HTML or XML: what it was downloaded from has answered with an error, " +
		"perhaps"},
	{"{", "it is a text in JSON, as XGBoost's save_model writes: " + ofSklearn},
}

// foreign says what a file that is no ONNX model is, by its first bytes, and what to do; "" if it
// does not know.
func foreign(begin []byte) string {
	for _, f := range foreignForms {
		if bytes.HasPrefix(begin, []byte(f.begin)) {
			return f.cure
		}
	}
	return ""
}

// foreignNames are the names and endings of files of other forms.
var foreignNames = map[string]string{
	".pt": ofPyTorch, ".pth": ofPyTorch, ".ckpt": ofPyTorch, ".safetensors": ofPyTorch,
	".pkl": ofSklearn, ".pickle": ofSklearn, ".joblib": ofSklearn, ".ubj": ofSklearn,
	".cbm": ofCatBoost, "saved_model.pb": ofTensorFlow, ".savedmodel": ofTensorFlow,
	".h5": ofKeras, ".hdf5": ofKeras, ".keras": ofKeras,
}

// ExportOf says how to make an ONNX model of a file or folder of another form, by its name; "" if
// its name is of none.
func ExportOf(name string) string {
	name = strings.ToLower(filepath.Base(name))
	if cure := foreignNames[name]; cure != "" {
		return cure
	}
	return foreignNames[filepath.Ext(name)]
}
