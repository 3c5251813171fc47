//! What holds where a manifest says nothing. Fields with a default of their own are filled in when a manifest is read;
//! what a process may use is not: on one machine only a limit that somebody wrote is enforced.

use crate::resource::Resources;
use crate::scalar::{Cpu, Duration, Size};

pub const NAMESPACE: &str = "default";
pub const MINIO_ENDPOINT: &str = "minio.minio.svc.cluster.local:9000";
pub const S3_REGION: &str = "us-east-1";
pub const HANDLER: &str = "index.handler";
pub const BROKER: &str = "default";
pub const IMAGE_PORT: u16 = 8080;
pub const REPLICAS_MAX: u32 = 50;
pub const TARGET_CONCURRENCY: u32 = 10;
pub const GRACE_PERIOD: Duration = Duration::from_secs(30);
pub const CALL_TIMEOUT: Duration = Duration::from_secs(30);
pub const BUILD_TIMEOUT: Duration = Duration::from_secs(30 * 60);
pub const REQUEST_MEMORY: Size = Size::mebi(32);
pub const REQUEST_CPU: Cpu = Cpu { millis: 25 };
pub const LIMIT_MEMORY: Size = Size::mebi(64);
pub const LIMIT_CPU: Cpu = Cpu { millis: 50 };

/// Every amount said, for a platform that must name them all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amounts {
    pub request_memory: Size,
    pub request_cpu: Cpu,
    pub limit_memory: Size,
    pub limit_cpu: Cpu,
}

/// A limit is never below what is requested, nor a request above its limit, whichever of the two was written.
pub fn amounts(resources: &Resources) -> Amounts {
    let (requests, limits) = (resources.requests, resources.limits);
    let limit_memory = limits.memory.unwrap_or(LIMIT_MEMORY.max(requests.memory.unwrap_or(REQUEST_MEMORY)));
    let limit_cpu = limits.cpu.unwrap_or(LIMIT_CPU.max(requests.cpu.unwrap_or(REQUEST_CPU)));
    Amounts {
        request_memory: requests.memory.unwrap_or(REQUEST_MEMORY.min(limit_memory)),
        request_cpu: requests.cpu.unwrap_or(REQUEST_CPU.min(limit_cpu)),
        limit_memory,
        limit_cpu,
    }
}
