//! A disk that writes to a real folder and to an image in memory that knows what a power cut could lose.

use crate::load::Rng;
use klambda_store::disk::{Disk, File};
use klambda_store::faulty_disk::MemoryDisk;
use klambda_store::real_disk::RealDisk;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

pub struct Mirror {
    real: RealDisk,
    pub image: MemoryDisk,
    camera: Arc<Camera>,
}

/// Occasionally takes pictures of the image before an operation.
struct Camera {
    image: MemoryDisk,
    one_in: u64,
    roll: Mutex<(Rng, Vec<MemoryDisk>)>,
}

impl Mirror {
    /// Takes one picture in about `one_in` operations.
    pub fn new(folder: &Path, one_in: u64, rng: Rng) -> Mirror {
        let image = MemoryDisk::new();
        let camera = Camera { image: image.clone(), one_in, roll: Mutex::new((rng, Vec::new())) };
        let real = RealDisk::open(folder).expect("a folder");
        Mirror { real, image, camera: Arc::new(camera) }
    }

    pub fn pictures(&self) -> Vec<MemoryDisk> {
        std::mem::take(&mut self.camera.roll.lock().expect("one thread").1)
    }

    /// The image and the folder must be equal.
    pub fn assert_equal(&self) {
        let names = self.real.list().expect("lists");
        assert_eq!(names, self.image.list().expect("lists"));
        for name in names {
            assert!(content(&self.real, &name) == content(&self.image, &name), "{name} differs");
        }
    }
}

pub fn content(disk: &dyn Disk, name: &str) -> Vec<u8> {
    let file = disk.open(name).expect("opens");
    let mut bytes = vec![0; file.len().expect("has a length") as usize];
    let n = file.read_at(&mut bytes, 0).expect("reads");
    assert_eq!(n, bytes.len());
    bytes
}

impl Camera {
    fn before_operation(&self) {
        let (rng, pictures) = &mut *self.roll.lock().expect("one thread");
        if rng.below(self.one_in) == 0 {
            pictures.push(self.image.clone_image());
        }
    }
}

impl Disk for Mirror {
    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        self.camera.before_operation();
        let (real, image) = (self.real.create(name)?, self.image.create(name)?);
        Ok(Arc::new(MirrorFile { real, image, camera: self.camera.clone() }))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let (real, image) = (self.real.open(name)?, self.image.open(name)?);
        Ok(Arc::new(MirrorFile { real, image, camera: self.camera.clone() }))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.real.list()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.camera.before_operation();
        self.real.remove(name)?;
        self.image.remove(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.camera.before_operation();
        self.real.rename(from, to)?;
        self.image.rename(from, to)
    }

    fn sync_names(&self) -> io::Result<()> {
        self.camera.before_operation();
        self.real.sync_names()?;
        self.image.sync_names()
    }

    fn free_bytes(&self) -> Option<u64> {
        self.real.free_bytes()
    }
}

struct MirrorFile {
    real: Arc<dyn File>,
    image: Arc<dyn File>,
    camera: Arc<Camera>,
}

impl File for MirrorFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.real.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.camera.before_operation();
        self.real.write_at(buf, offset)?;
        self.image.write_at(buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.camera.before_operation();
        self.real.sync()?;
        self.image.sync()
    }

    fn len(&self) -> io::Result<u64> {
        self.real.len()
    }
}
