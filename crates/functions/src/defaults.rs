//! Default values. Most defaults are filled in when a manifest is read. Resource limits are not: the local platform
//! enforces only the limits that a manifest sets.

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

/// All amounts with defaults filled in, for platforms that must set every amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amounts {
    pub request_memory: Size,
    pub request_cpu: Cpu,
    pub limit_memory: Size,
    pub limit_cpu: Cpu,
}

/// A default limit is never below the given request, and a default request is never above the given limit.
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
