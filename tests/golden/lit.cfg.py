# What a compile becomes, as text. `lit tests/golden --param bin=BUILD/bin`
import os
import shutil

import lit.formats

config.name = "golden"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".textproto"]
config.test_source_root = os.path.dirname(__file__)
config.test_exec_root = os.path.join(lit_config.params["bin"], "..", "golden")
tools = [lit_config.params["bin"], lit_config.params.get("llvm", "/usr/lib/llvm-22/bin")]
config.environment["PATH"] = os.pathsep.join([*tools, os.environ.get("PATH", "")])
# NVIDIA's assembler, from the CUDA Toolkit: where it is, every kernel's PTX has to pass it.
ptxas = shutil.which("ptxas", path=os.environ.get("PATH", "") + ":/usr/local/cuda/bin")
if ptxas:
    config.available_features.add("ptxas")
    config.substitutions.append(("%ptxas", ptxas))
