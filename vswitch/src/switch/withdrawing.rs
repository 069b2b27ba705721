//! Changes that take rules out of a NIC. A NIC that does not answer is waited for about a second at each step of a change; then the change
//! goes on in software, and whoever asked for it is told that hardware may go on as before.

use serde_json::json;

use super::offload::late::LateNews;
use super::{Switch, SwitchError};

impl Switch {
    /// Makes a change that is acknowledged then.
    ///
    /// # Errors
    /// Those of the change, and [`SwitchError::NotWithdrawn`] where it was made and the NIC has not let go what it forbids.
    pub(crate) fn withdrawing<T>(
        &mut self,
        change: impl FnOnce(&mut Self) -> Result<T, SwitchError>,
    ) -> Result<T, SwitchError> {
        self.offload.begin_change();
        let made = change(self)?;
        self.tell_late();
        self.in_hardware_too(self.offload.late_in_change())?;
        Ok(made)
    }

    /// Fails where so many rules are still to leave.
    ///
    /// # Errors
    /// [`SwitchError::NotWithdrawn`].
    pub(super) fn in_hardware_too(&self, late: usize) -> Result<(), SwitchError> {
        match late {
            0 => Ok(()),
            rules => Err(SwitchError::NotWithdrawn { port: self.port_of_rules(), rules }),
        }
    }

    /// Tells of rules that the NIC does not let go in time, and when it has.
    pub(super) fn tell_late(&mut self) {
        let Some(news) = self.offload.late_news() else { return };
        let port = self.port_of_rules();
        match news {
            LateNews::Late(rules) => {
                let text = format!(
                    "the NIC of port {port} has not answered that it let {rules} rules go: it may still forward what a change forbids"
                );
                tracing::error!("{text}");
                self.events.add("offload-late", text, json!({ "port": port, "rules": rules }));
            }
            LateNews::Gone => {
                let text = format!("the NIC of port {port} has let go the rules that it was late with");
                tracing::info!("{text}");
                self.events.add("offload-let-go", text, json!({ "port": port }));
            }
        }
    }

    /// The name of the port that takes the rules; empty where it is gone.
    fn port_of_rules(&self) -> String {
        let proxy = self.offload.proxy();
        let known = self.ports.iter().find(|(_, attached)| Some(attached.port.id()) == proxy);
        known.map(|(_, attached)| attached.name.clone()).unwrap_or_default()
    }
}
