//! `scrimp doctor`: what this machine offers.

use std::path::{Path, PathBuf};

use scrimp::plan::format_bytes;
use scrimp::run::{
    Cpu, GpuError, GpuLibrary, Library as Kernels, LinkProfile, OneDnnError, Processor, RunError,
    cuda, opencl,
};
use scrimp::solve::Method;
use scrimp::solve::solvers::{Installed, Library, SolverError, installed};
use scrimp::{machine, swap_places};
use serde_json::{Value, json};

use crate::Answer;
use crate::args::DoctorArgs;
use crate::costing;
use crate::table::Table;

/// Asks the operating system and the processor.
pub fn run(args: &DoctorArgs) -> anyhow::Result<Answer> {
    let threads = args.threads.map_or(0, usize::from);
    let onednn = Cpu::with_library(threads, Kernels::OneDnn);
    let cpu = match &onednn {
        Ok(cpu) => cpu,
        Err(RunError::OneDnn(_)) => &Cpu::new(threads).map_err(scrimp::Error::from)?,
        Err(error) => return Err(scrimp::Error::from(error.clone()).into()),
    };
    let kernels = kernels(&onednn);
    let memory = machine::memory();
    let shown = |bytes: Option<u64>| bytes.map_or("unknown".into(), format_bytes);
    let mut table = Table::new("lrl");
    table
        .row(["version", env!("CARGO_PKG_VERSION"), ""])
        .row([
            "threads",
            &cpu.threads().to_string(),
            "used unless --threads says otherwise",
        ])
        .row([
            "instruction set",
            cpu.isa(),
            "the widest that the kernels use here",
        ])
        .row([
            "memory",
            &shown(memory.total),
            "or this process's limit, if less",
        ])
        .row(["memory free to take", &shown(memory.available), "now"])
        .row([
            "device",
            &cpu.signature(),
            "a plan's workspaces belong to it",
        ])
        .row(["oneDNN", &kernels.0, &kernels.1]);
    let mut cache = costing::cache(Processor::Cpu(cpu));
    let folders = [std::env::temp_dir(), PathBuf::from(".")];
    let places = swap_places(&folders, cache.as_mut());
    for place in &places {
        let name = match &place.folder {
            Some(folder) => format!("swap to {}", folder.display()),
            None => "swap to RAM".into(),
        };
        let (room, note) = match &place.room {
            Ok(room) => (shown(*room), speeds(place.measured.as_ref())),
            Err(error) => ("unusable".into(), error.to_string()),
        };
        table.row([name, room, note]);
    }
    let counter = machine::EnergyCounter::start().map(|_| ());
    match &counter {
        Ok(()) => table.row([
            "energy counter",
            "found",
            "of the processor; `run` tells joules",
        ]),
        Err(error) => table.row(["energy counter", "not found", &error.to_string()]),
    };
    let opencl = opencl::Driver::load(None).and_then(|driver| driver.devices());
    let cuda = cuda::Driver::load(None).and_then(|driver| driver.devices());
    let compiler = cuda::Compiler::load(None);
    let libraries = [
        (GpuLibrary::CublasLt, cuda::Products::installed()),
        (GpuLibrary::Cudnn, cuda::Convolutions::installed()),
    ];
    for (name, value, note) in opencl_rows(&opencl)
        .into_iter()
        .chain(cuda_rows(&cuda, &compiler, &libraries))
    {
        table.row([name, value, note]);
    }
    let solvers = [Library::OrTools, Library::Highs].map(|library| (library, found(library, args)));
    for (library, found) in &solvers {
        let methods = methods(*library).join(", ");
        match found {
            Ok(found) => {
                let version = found.version.as_deref().unwrap_or("found");
                let note = format!("{}; for {methods}", found.path.display());
                table.row([&library.to_string(), version, &note]);
            }
            Err(SolverError::NotFound { .. }) => {
                let note = format!("for {methods}; `pip install ortools` brings CP-SAT and HiGHS");
                table.row([&library.to_string(), "not found", &note]);
            }
            Err(error) => {
                table.row([library.to_string(), "unusable".into(), error.to_string()]);
            }
        }
    }
    let json = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "threads": cpu.threads(),
        "instruction_set": cpu.isa(),
        "memory_bytes": memory.total,
        "available_bytes": memory.available,
        "device": cpu.signature(),
        "onednn": kernels.2,
        "swap": places.iter().map(|place| json!({
            "folder": place.folder,
            "available_bytes": place.room.as_ref().ok(),
            "error": place.room.as_ref().err().map(ToString::to_string),
            "link": place.measured,
        })).collect::<Vec<_>>(),
        "energy_counter_error": counter.err().map(|error| error.to_string()),
        "opencl": {
            "error": opencl.as_ref().err().map(ToString::to_string),
            "devices": opencl.iter().flatten().map(opencl_device).collect::<Vec<_>>(),
        },
        "cuda": {
            "error": cuda.as_ref().err().map(ToString::to_string),
            "compiler": compiler.as_ref().ok().map(|found| found.path()),
            "libraries": libraries.iter().map(|(library, version)| json!({
                "name": library.to_string(),
                "version": version.as_ref().ok(),
                "error": version.as_ref().err().map(ToString::to_string),
            })).collect::<Vec<_>>(),
            "compiler_error": compiler.as_ref().err().map(ToString::to_string),
            "devices": cuda.iter().flatten().map(cuda_device).collect::<Vec<_>>(),
        },
        "solvers": solvers.iter().map(|(library, found)| object(*library, found)).collect::<Vec<_>>(),
    });
    Ok(Answer::new(json, table.to_string()))
}

/// What was measured of a memory's links.
fn speeds(measured: Option<&LinkProfile>) -> String {
    let Some(link) = measured else {
        return "free; its speed is measured when --swap first names it".into();
    };
    let rate = |bytes: f64| format!("{}/s", format_bytes(bytes as u64));
    format!(
        "free; {} out, {} back, {} both at once, measured",
        rate(link.out),
        rate(link.back),
        rate(link.both)
    )
}

/// How oneDNN was found and what that means: its version or what is wrong, a sentence, and an object.
fn kernels(onednn: &Result<Cpu, RunError>) -> (String, String, Value) {
    let object = |version: Option<&str>, path: Option<&Path>, error: Option<&str>| json!({ "version": version, "path": path, "error": error });
    match onednn {
        Ok(cpu) => {
            let library = cpu.onednn();
            let version = library.map(|library| library.version().to_string());
            let path = library.map(|library| library.path());
            let place = path.map(|path| path.display().to_string());
            let note = format!(
                "{}; runs convolutions and products of matrices",
                place.unwrap_or_default()
            );
            let object = object(version.as_deref(), path, None);
            (version.unwrap_or_default(), note, object)
        }
        Err(error) => {
            let missing = matches!(error, RunError::OneDnn(OneDnnError::NotFound));
            let error = error.to_string();
            let object = object(None, None, Some(&error));
            if missing {
                let note = "training steps take 1.2 to 2.2 times as long without it; \
                            `pip install onednn-cpu-gomp` brings it";
                return ("not found".into(), note.into(), object);
            }
            ("unusable".into(), error, object)
        }
    }
}

/// A row for each OpenCL device, or one that says why there is none.
fn opencl_rows(found: &Result<Vec<opencl::Device>, GpuError>) -> Vec<(String, String, String)> {
    let row = |value: &str, note: String| vec![("OpenCL".into(), value.into(), note)];
    let devices = match found {
        Ok(devices) => devices,
        Err(error @ GpuError::NotFound { .. }) => return row("not found", error.to_string()),
        Err(error) => return row("unusable", error.to_string()),
    };
    let each = devices.iter().map(|device| {
        let mut note = format!(
            "{} of {}, {} in buffers of up to {}, aligned to {} bytes",
            device.kind,
            device.platform,
            format_bytes(device.memory_bytes),
            format_bytes(device.largest_buffer_bytes),
            device.alignment_bytes
        );
        for missing in device.missing() {
            note += &format!("; can't be used: it {missing}");
        }
        (device.name.clone(), note)
    });
    let rows = each.enumerate();
    let rows: Vec<_> = rows
        .map(|(i, (name, note))| (format!("OpenCL {i}"), name, note))
        .collect();
    match rows.is_empty() {
        true => row("no device", no_device(GpuLibrary::OpenCl)),
        false => rows,
    }
}

/// Why there is no device although a library is there.
fn no_device(library: GpuLibrary) -> String {
    let (number, devices) = (0, Vec::new());
    GpuError::NoDevice {
        library,
        number,
        devices,
    }
    .to_string()
}

/// A row for each CUDA device, or one that says why there is none.
fn cuda_rows(
    found: &Result<Vec<cuda::Device>, GpuError>,
    compiler: &Result<&cuda::Compiler, GpuError>,
    libraries: &[(GpuLibrary, Result<usize, GpuError>)],
) -> Vec<(String, String, String)> {
    let row = |value: &str, note: String| vec![("CUDA".into(), value.into(), note)];
    let devices = match found {
        Ok(devices) if devices.is_empty() => return row("no device", no_device(GpuLibrary::Cuda)),
        Ok(devices) => devices,
        Err(error @ GpuError::NotFound { .. }) => return row("not found", error.to_string()),
        Err(error) => return row("unusable", error.to_string()),
    };
    let each = devices.iter().enumerate().map(|(number, device)| {
        let ((major, minor), memory) = (device.capability, format_bytes(device.memory_bytes));
        let mut note = format!(
            "{memory}, {} multiprocessors, compute capability {major}.{minor}",
            device.units
        );
        if let Err(error) = compiler {
            note += &format!("; can't be used: {error}");
        }
        for (library, version) in libraries {
            note += &match version {
                Ok(version) => format!("; {library} {version}"),
                Err(error @ GpuError::NotFound { .. }) => {
                    format!("; slower than could be: {error}")
                }
                Err(error) => format!("; can't be used: {error}"),
            };
        }
        (format!("CUDA {number}"), device.name.clone(), note)
    });
    each.collect()
}

/// A CUDA device as an object.
fn cuda_device(device: &cuda::Device) -> Value {
    let ((major, minor), version) = (device.capability, device.version());
    json!({
        "name": device.name,
        "driver": format!("{}.{}", version.0, version.1),
        "compute_capability": format!("{major}.{minor}"),
        "memory_bytes": device.memory_bytes,
        "local_bytes": device.local_bytes,
        "units": device.units,
    })
}

/// An OpenCL device as an object.
fn opencl_device(device: &opencl::Device) -> Value {
    let (major, minor) = device.version;
    json!({
        "name": device.name,
        "platform": device.platform,
        "kind": device.kind.to_string(),
        "version": format!("{major}.{minor}"),
        "driver": device.driver,
        "memory_bytes": device.memory_bytes,
        "largest_buffer_bytes": device.largest_buffer_bytes,
        "local_bytes": device.local_bytes,
        "alignment_bytes": device.alignment_bytes,
        "units": device.units,
        "double": device.double,
        "missing": device.missing(),
    })
}

/// Loads a library as the methods that need it would.
fn found(library: Library, args: &DoctorArgs) -> Result<Installed, SolverError> {
    let path = match library {
        Library::Highs => &args.highs,
        Library::OrTools => &args.ortools,
    };
    installed(library, path.as_deref())
}

/// The methods that need a library.
fn methods(library: Library) -> Vec<&'static str> {
    let needs = |method: &&Method| method.library() == Some(library);
    let all = Method::ALL.iter().filter(needs);
    all.map(|method| method.name()).collect()
}

fn object(library: Library, found: &Result<Installed, SolverError>) -> Value {
    json!({
        "library": library.to_string(),
        "path": found.as_ref().ok().map(|found| &found.path),
        "version": found.as_ref().ok().and_then(|found| found.version.as_ref()),
        "error": found.as_ref().err().map(ToString::to_string),
        "methods": methods(library),
    })
}
